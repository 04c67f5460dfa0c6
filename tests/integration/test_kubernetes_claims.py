"""Sandboxes from agent-sandbox's warm pools: the same contract, claims that stay warm and are released."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.errors import UserError
from agentrl.kubernetes.client import KubernetesClient
from agentrl.kubernetes.connection import connect
from agentrl.kubernetes.resources import PODS, SANDBOX_CLAIMS, SANDBOX_WARM_POOLS
from agentrl.sandbox.pods.claims import ClaimProvider
from tests.contracts import sandbox as contract
from tests.contracts.sandbox import SPEC, SandboxCheck
from tests.fake_kubernetes import FakeCluster, plain_image, running
from tests.fixtures.pods import OWNER, REAL, left_over, pod_config
from tests.fixtures.sandboxes import until

CHECKS: list[SandboxCheck] = [
    contract.a_command_that_ends_has_its_exit_code,
    contract.files_go_in_and_out,
    contract.sandboxes_do_not_share_files,
    contract.one_that_was_started_for_nobody_is_handed_out_later,
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCluster | None]:
    if REAL:
        yield None
        return
    with running(tmp_path_factory.mktemp("cluster"), images=[plain_image("*")]) as made:
        yield made


@pytest.fixture
def kubeconfig(cluster: FakeCluster | None) -> str:
    return REAL or str(cluster.kubeconfig())  # type: ignore[union-attr]


@pytest.fixture
async def client(kubeconfig: str) -> AsyncIterator[KubernetesClient]:
    async with KubernetesClient(await connect(kubeconfig=kubeconfig)) as made:
        if not await made.serves(SANDBOX_CLAIMS):
            pytest.skip("the cluster has no agent-sandbox")
        yield made


@pytest.fixture
async def provider(
    client: KubernetesClient, kubeconfig: str, cluster: FakeCluster | None, tmp_path: Path
) -> AsyncIterator[ClaimProvider]:
    made = ClaimProvider(pod_config(kubeconfig, warm_replicas=2), OWNER, state_dir=tmp_path)
    yield made
    await made.close()
    if cluster is not None:
        for _ in range(200):
            if not left_over(cluster):
                break
            await asyncio.sleep(0.05)
        assert left_over(cluster) == []


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_contract(check: SandboxCheck, provider: ClaimProvider) -> None:
    await check(provider)


async def test_a_claim_takes_a_warm_pod_and_is_released(provider: ClaimProvider, client: KubernetesClient) -> None:
    first = await provider.create(SPEC)

    async def replenished() -> bool:
        pools = (await client.list_all(SANDBOX_WARM_POOLS)).items
        return [(pool.get("status") or {}).get("readyReplicas") for pool in pools] == [2]

    await until(replenished)
    warm = {found["metadata"]["name"] for found in (await client.list_all(PODS)).items}
    second = await provider.create(replace(SPEC, owner="g000000.m000.a00"))
    assert second.id in warm - {first.id}
    claims = (await client.list_all(SANDBOX_CLAIMS)).items
    assert len(claims) == 2
    for claim in claims:
        assert "env" not in claim["spec"]
        assert claim["spec"]["lifecycle"]["shutdownTime"] and claim["spec"]["lifecycle"]["shutdownPolicy"] == "Delete"
    await second.close()
    await first.close()

    async def released() -> bool:
        return not (await client.list_all(SANDBOX_CLAIMS)).items and provider.room == 8

    await until(released)


async def test_a_cluster_without_it_is_told_apart(tmp_path: Path) -> None:
    with running(tmp_path / "bare", serve=()) as bare:
        provider = ClaimProvider(pod_config(bare.kubeconfig()), OWNER, state_dir=tmp_path)
        with pytest.raises(UserError, match=r"does not serve extensions\.agents"):
            await provider.create(SPEC)
        await provider.close()
        assert left_over(bare) == []
