"""What `plan` finds that a cluster lacks, and what a launch that is refused leaves behind: nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from agentrl.cluster.kubernetes.checks import missing, missing_rights
from agentrl.cluster.kubernetes.rendered import rendered
from agentrl.cluster.kubernetes.runs import Runs
from agentrl.config.compose import load
from agentrl.config.kubernetes import settled_config, submission_of
from agentrl.errors import AgentrlError, UserError
from agentrl.kubernetes.client import KubernetesClient
from agentrl.kubernetes.connection import connect
from agentrl.kubernetes.names import RUN
from agentrl.kubernetes.resources import QUOTAS, SERVICE_ACCOUNTS
from tests.fake_kubernetes import FakeCluster, NodeSpec, running

EXAMPLE = Path(__file__).parents[2] / "conf" / "exp.yaml"
SHARED = ("cluster=kubernetes", "cluster.kubernetes.volume.storage_class=shared")
Start = Callable[..., FakeCluster]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield lambda **how: stack.enter_context(running(tmp_path / "cluster", **how))


async def found(cluster: FakeCluster, *overrides: str, kubeconfig: Path | None = None) -> dict[str, str]:
    """What is missing, and the fix."""
    config = load(EXAMPLE, overrides or SHARED).config
    async with KubernetesClient(await connect(kubeconfig=str(kubeconfig or cluster.kubeconfig()))) as client:
        groups = await Runs(client, entropy=Random(0)).groups()
        submission = submission_of("exp-001", settled_config(config, groups))
        problems = await missing(client, rendered(submission, client.namespace), submission.workload, groups)
    return {one.what: one.fix for one in problems}


async def test_a_cluster_that_has_everything_lacks_nothing(start: Start) -> None:
    assert await found(start()) == {}


async def test_kinds_and_storage_that_are_not_there_are_named(start: Start) -> None:
    cluster = start(serve=())
    kinds = await found(cluster, *SHARED, "cluster.kubernetes.trainer_kind=jobset")
    assert "the cluster does not serve jobsets.jobset.x-k8s.io" in kinds
    storage = await found(cluster, "cluster=kubernetes", "cluster.kubernetes.volume.storage_class=fast")
    assert any(what == "there is no StorageClass fast" for what in storage)


async def test_gpus_that_no_node_offers_are_missed(start: Start) -> None:
    cluster = start(nodes=[NodeSpec("gpu-0", resources={"nvidia.com/gpu": "2"})])
    gpus = ("inference=sglang", "inference.num_engines=4", "schedule.swing=none")
    assert any("4 engine pods of 1 nvidia.com/gpu do not fit" in what for what in await found(cluster, *SHARED, *gpus))


async def test_a_quota_without_room_is_told_with_what_is_left(start: Start) -> None:
    cluster = start()
    async with KubernetesClient(await connect(kubeconfig=str(cluster.kubeconfig()))) as client:
        quota = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "small", "namespace": "default"},
            "spec": {"hard": {"requests.memory": "1Gi"}},
        }
        await client.create(QUOTAS, quota)
    assert any("quota small has" in what and "requests.memory" in what for what in await found(cluster))


async def test_each_right_that_is_missing_comes_with_the_command_that_grants_it(start: Start) -> None:
    cluster = start()
    async with KubernetesClient(await connect(kubeconfig=str(cluster.kubeconfig()))) as client:
        nobody = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "nobody", "namespace": "default"}}
        await client.create(SERVICE_ACCOUNTS, nobody)
    kubeconfig = cluster.service_account_kubeconfig("default", "nobody")
    config = load(EXAMPLE, SHARED).config
    async with KubernetesClient(await connect(kubeconfig=str(kubeconfig))) as client:
        submission = submission_of("exp-001", settled_config(config, ()))
        problems = await missing_rights(client, rendered(submission, "default"), submission.workload)
    fixes = {one.what: one.fix for one in problems}
    assert "kubectl create role agentrl-create-jobs -n default --verb=create" in fixes["you may not create jobs"]


async def test_a_launch_that_is_refused_takes_back_what_it_sent(start: Start) -> None:
    cluster = start()
    cluster.deny("rolebindings", "no bindings here")
    config = load(EXAMPLE, SHARED).config
    async with KubernetesClient(await connect(kubeconfig=str(cluster.kubeconfig()))) as client:
        runs = Runs(client, entropy=Random(0))
        submission = submission_of("exp-001", settled_config(config, ()))
        with pytest.raises(AgentrlError, match="no bindings here"):
            await runs.submit(submission, new=True)
        assert await runs.records() == []
        await runs.stop("exp-001", grace_s=0.0)  # waits until it is gone
    left = [one for _, one in cluster.everything() if one["metadata"].get("labels", {}).get(RUN)]
    assert left == []


async def test_a_name_that_is_taken_is_refused_and_the_next_number_is_free(start: Start) -> None:
    cluster = start()
    config = settled_config(load(EXAMPLE, SHARED).config, ())
    async with KubernetesClient(await connect(kubeconfig=str(cluster.kubeconfig()))) as client:
        runs = Runs(client, entropy=Random(0))
        await runs.submit(submission_of("exp-001", config), new=True)
        with pytest.raises(UserError, match="run 'exp-001' exists"):
            await runs.submit(submission_of("exp-001", config), new=True)
        assert await runs.free_name("exp") == "exp-002"
        assert await runs.stop("exp-001", grace_s=0.0)
        with pytest.raises(UserError, match="no run 'other'"):
            await runs.record_of("other")
