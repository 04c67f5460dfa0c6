"""Pods as sandboxes, and what happens to them: the agent's doing and the cluster's, servers that restart, connections
that break, controllers that die. What a real cluster does not do on request is skipped there."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.errors import SandboxError, UserError
from agentrl.kubernetes.client import KubernetesClient
from agentrl.kubernetes.connection import connect
from agentrl.kubernetes.names import EPISODE
from agentrl.kubernetes.resources import PODS
from agentrl.sandbox.death import Death
from agentrl.sandbox.owner import SandboxOwner
from agentrl.sandbox.pods.cluster import reap
from agentrl.sandbox.pods.provider import PodProvider
from agentrl.sandbox.provider import CommandLimits, Image, Sandbox, SandboxSpec
from tests.contracts.sandbox import SPEC, begun
from tests.fake_kubernetes import FakeCluster, PodLaw, plain_image, running
from tests.fixtures.pods import OWNER, REAL, left_over, pod_config, pod_provider
from tests.fixtures.sandboxes import until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCluster | None]:
    if REAL:
        yield None
        return
    law = PodLaw(missing_images=("*missing/*",), backoff_s=0.1)
    with running(tmp_path_factory.mktemp("cluster"), images=[plain_image("*")], law=law) as made:
        yield made


@pytest.fixture
def fake(cluster: FakeCluster | None) -> FakeCluster:
    if cluster is None:
        pytest.skip("a real cluster does no such thing on request")
    return cluster


@pytest.fixture
def kubeconfig(cluster: FakeCluster | None) -> str:
    return REAL or str(cluster.kubeconfig())  # type: ignore[union-attr]


@pytest.fixture
async def client(kubeconfig: str) -> AsyncIterator[KubernetesClient]:
    async with KubernetesClient(await connect(kubeconfig=kubeconfig)) as made:
        yield made


@pytest.fixture
async def provider(cluster: FakeCluster | None, kubeconfig: str, tmp_path: Path) -> AsyncIterator[PodProvider]:
    async with pod_provider(pod_config(kubeconfig), tmp_path) as made:
        yield made
        if cluster is not None:
            cluster.no_more_trouble()
    if cluster is not None:
        assert left_over(cluster) == []


@pytest.fixture
async def sandbox(provider: PodProvider) -> Sandbox:
    return await provider.create(SPEC)


async def lost(sandbox: Sandbox, running: asyncio.Task[object]) -> SandboxError:
    """The error of a command, which each later one has too."""
    with pytest.raises(SandboxError) as caught:
        await running
    assert not await sandbox.probe()
    return caught.value


async def test_results_are_those_of_any_sandbox(sandbox: Sandbox) -> None:
    result = await sandbox.exec("echo out; echo err >&2; exit 3", timeout_s=20)
    assert (result.exit_code, result.signal, result.stdout, result.stderr) == (3, None, b"out\n", b"err\n")
    assert (await sandbox.exec(["sh", "-c", "exit 137"], timeout_s=20)).exit_code == 137
    killed = await sandbox.exec("kill -15 $$", timeout_s=20)
    assert (killed.exit_code, killed.signal) == (None, signal.SIGTERM)
    capped = await sandbox.exec("head -c 1000000 /dev/zero; echo x >&2", max_output_bytes=1000, timeout_s=20)
    assert (len(capped.stdout), capped.stderr, capped.truncated, capped.bytes_total) == (1000, b"x\n", True, 1_000_002)
    data = bytes(range(256)) * 500
    fed = await sandbox.exec("wc -c; cat", stdin=data, timeout_s=20)
    assert fed.stdout.startswith(b"128000\n")
    assert (await sandbox.exec(["no-such-program"], timeout_s=20)).exit_code == 127
    assert (await sandbox.exec("true", cwd="/no/such", timeout_s=20)).exit_code == 126
    assert (await sandbox.exec("echo a\0b", timeout_s=20)).exit_code == 126
    told = await sandbox.exec(
        "env; ulimit -v; ulimit -t", env={"A": "ä b"}, limits=CommandLimits(memory_mb=64, cpu_s=9), timeout_s=20
    )
    assert "A=ä b\n" in told.stdout.decode() and b"KUBERNETES_" not in told.stdout
    assert told.stdout.endswith(b"65536\n9\n")


async def test_a_timeout_kills_daemons_and_spares_those_of_earlier_commands(sandbox: Sandbox) -> None:
    held = await sandbox.exec("setsid -f sleep 701 >/dev/null 2>&1; sleep 702 & echo done", timeout_s=20)
    assert (held.exit_code, held.stdout, held.leftover_processes) == (0, b"done\n", 2)
    result = await sandbox.exec("(setsid setsid sleep 703 &); setsid -f sleep 704; echo said; sleep 705", timeout_s=0.5)
    assert (result.exit_code, result.timed_out, result.leftover_processes) == (None, True, 0)
    assert result.stdout == b"said\n"
    seen = await sandbox.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '", timeout_s=20)
    assert [f"sleep {number}".encode() in seen.stdout for number in (701, 702, 703, 704, 705)] == [True, True] + [
        False
    ] * 3
    assert await sandbox.kill_all() == 2


async def test_a_command_that_kills_its_runner_is_no_way_out(sandbox: Sandbox) -> None:
    result = await sandbox.exec("kill -9 $PPID; sleep 706", timeout_s=0.5)
    assert (result.exit_code, result.signal, result.timed_out) == (None, signal.SIGKILL, True)
    result = await sandbox.exec("kill -9 -1; sleep 707", timeout_s=20)
    assert (result.exit_code, result.signal) == (None, signal.SIGKILL)
    assert await sandbox.kill_all() == 0
    assert (await sandbox.exec("echo on", timeout_s=20)).stdout == b"on\n"


async def test_commands_become_other_users_where_they_may(
    provider: PodProvider, kubeconfig: str, tmp_path: Path
) -> None:
    sandbox = await provider.create(SPEC)
    told = await sandbox.exec("id -u; echo $HOME", user="daemon", timeout_s=20)
    assert told.stdout.split() == [b"1", b"/usr/sbin"]
    with pytest.raises(UserError, match="nobody-such"):
        await sandbox.exec("true", user="nobody-such", timeout_s=20)
    limited = pod_config(kubeconfig, run_as_user=1234)
    async with pod_provider(limited, tmp_path / "other", owner=SandboxOwner(run="limited", epoch=1)) as other:
        bound = await other.create(SandboxSpec(image=Image(workdir="/tmp")))
        assert (await bound.exec("id -u", timeout_s=20)).stdout == b"1234\n"
        with pytest.raises(UserError, match="run_as_user"):
            await bound.exec("true", user="root", timeout_s=20)


async def test_a_pod_says_what_ended_it(
    provider: PodProvider, client: KubernetesClient, cluster: FakeCluster | None
) -> None:
    sandbox = await provider.create(SPEC)
    command = await begun(sandbox, "sleep 600", timeout_s=900)
    await client.delete(PODS, sandbox.id)
    assert (await lost(sandbox, command)).death is Death.EVICTED
    sandbox = await provider.create(SPEC)
    command = await begun(sandbox, "sleep 600", timeout_s=900)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": sandbox.id}}
    await client.create(PODS, eviction, name=sandbox.id, subresource="eviction")
    assert (await lost(sandbox, command)).death is Death.EVICTED
    if cluster is not None:
        for end, death in ((cluster.oom, Death.OUT_OF_MEMORY), (cluster.kill_pod, Death.KILLED)):
            sandbox = await provider.create(SPEC)
            command = await begun(sandbox, "sleep 600", timeout_s=900)
            end(sandbox.id, client.namespace)
            assert (await lost(sandbox, command)).death is death
            with pytest.raises(SandboxError):
                await sandbox.assign("g000000.m000.a00")


async def test_an_api_server_restarts_and_sandboxes_live_on(provider: PodProvider, fake: FakeCluster) -> None:
    sandbox = await provider.create(SPEC)
    await sandbox.write("/app/file", b"kept")
    command = await begun(sandbox, "sleep 600", timeout_s=900)
    fake.restart_api(down_s=0.5)
    with pytest.raises(SandboxError) as caught:
        await command
    assert caught.value.death is Death.UNREACHABLE
    assert await sandbox.read("/app/file") == b"kept"
    assert (await sandbox.exec("echo on", timeout_s=20)).stdout == b"on\n"
    assert (await (await provider.create(SPEC)).exec("echo new", timeout_s=20)).stdout == b"new\n"
    fake.forget_history()
    assert (await (await provider.create(SPEC)).exec("echo newer", timeout_s=20)).stdout == b"newer\n"


async def test_no_result_is_made_up_of_a_broken_connection(provider: PodProvider, fake: FakeCluster) -> None:
    sandbox = await provider.create(SPEC)
    fake.break_exec("silent")
    assert (await sandbox.exec("exit 7", timeout_s=20)).exit_code == 7
    fake.no_more_trouble()
    fake.break_exec("drop", after_bytes=200)
    with pytest.raises(SandboxError) as caught:
        await sandbox.exec("seq 1000; exit 0", timeout_s=20)
    assert caught.value.death is Death.UNREACHABLE
    fake.no_more_trouble()
    assert (await sandbox.exec("exit 8", timeout_s=20)).exit_code == 8


async def test_a_busy_server_is_asked_again(provider: PodProvider, fake: FakeCluster) -> None:
    fake.throttle(retry_after_s=0.1, times=2)
    fake.fail(503, verb="create", plural="pods", times=1)
    assert await (await provider.create(SPEC)).probe()


async def test_an_image_that_cannot_be_pulled_is_said(provider: PodProvider) -> None:
    spec = SandboxSpec(image=Image(workdir="/app", reference="localhost:1/missing/image:1"))
    with pytest.raises(SandboxError, match="missing/image") as caught:
        await provider.create(spec)
    assert caught.value.death is Death.IMAGE


async def test_a_new_controller_reaps_what_the_last_one_left(
    client: KubernetesClient, kubeconfig: str, tmp_path: Path
) -> None:
    config = pod_config(kubeconfig)
    old = PodProvider(config, replace(OWNER, run="restarted"), state_dir=tmp_path)
    other = PodProvider(config, replace(OWNER, run="restarted-2"), state_dir=tmp_path)
    left = await old.create(replace(SPEC, owner="g000000.m000.a00"))
    kept = await other.create(SPEC)
    # It dies: nothing more is heard of it. What it had is found by labels alone.
    async with pod_provider(config, tmp_path, owner=SandboxOwner(run="restarted", epoch=4)) as new:
        mine = await new.create(SPEC)
        assert (mine.id, left.id) == ("restarted-e4-sb-1", "restarted-e3-sb-1")

        async def only_mine() -> bool:
            there = (await client.list_all(PODS, labels="agentrl.dev/run=restarted")).items
            return [pod["metadata"]["name"] for pod in there] == [mine.id]

        await until(only_mine)
        assert await kept.probe()
    await other.close()
    await old.close()
    third = PodProvider(config, SandboxOwner(run="restarted", epoch=5), state_dir=tmp_path)
    await third.create(SPEC)
    assert await reap(config, "restarted") == 1
    await third.close()


async def test_pods_are_hardened_and_labelled(provider: PodProvider, client: KubernetesClient) -> None:
    sandbox = await provider.create(SPEC)
    await sandbox.assign("g000000.m000.a00")

    async def labelled() -> bool:
        return (await client.get(PODS, sandbox.id))["metadata"]["labels"].get(EPISODE) == "g000000.m000.a00"

    await until(labelled)
    pod = await client.get(PODS, sandbox.id)
    spec, container = pod["spec"], pod["spec"]["containers"][0]
    assert spec["automountServiceAccountToken"] is False and spec["enableServiceLinks"] is False
    assert spec["restartPolicy"] == "Never" and spec["activeDeadlineSeconds"] == 14400
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert set(container["resources"]["limits"]) == {"memory", "ephemeral-storage"}


async def test_missing_rights_are_told_with_what_grants_them(fake: FakeCluster, tmp_path: Path) -> None:
    from tests.fake_kubernetes.access import User

    nobody = fake.kubeconfig(namespace="default", user=User("ann", ()))
    provider = PodProvider(pod_config(nobody), OWNER, state_dir=tmp_path)
    with pytest.raises(UserError) as caught:
        await provider.create(SPEC)
    assert caught.value.hint is not None and caught.value.hint.startswith("kubectl create role agentrl-list-")
