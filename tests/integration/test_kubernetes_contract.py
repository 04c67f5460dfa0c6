"""Pods keep what every sandbox promises."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.sandbox.pods.config import PodSnapshots
from agentrl.sandbox.pods.provider import PodProvider
from tests.contracts.sandbox import SANDBOX_CHECKS, closing_the_provider_closes_its_sandboxes
from tests.fake_kubernetes import FakeCluster, plain_image, running
from tests.fixtures.pods import REAL, left_over, pod_config, pod_provider


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCluster | None]:
    """A cluster with real processes; None for the real one."""
    if REAL:
        yield None
        return
    with running(tmp_path_factory.mktemp("cluster"), images=[plain_image("*")]) as made:
        yield made


@pytest.fixture
async def provider(cluster: FakeCluster | None, tmp_path: Path) -> AsyncIterator[PodProvider]:
    config = pod_config(REAL or cluster.kubeconfig(), snapshots=PodSnapshots.workdir)  # type: ignore[union-attr]
    config = replace(config, max_sandboxes=64)
    async with pod_provider(config, tmp_path) as made:
        yield made
    if cluster is not None:
        assert left_over(cluster) == []


async def test_contract(provider: PodProvider) -> None:
    """All in one provider: most of the time of such a test is spent on its beginning and end."""
    last = closing_the_provider_closes_its_sandboxes
    for check in [check for check in SANDBOX_CHECKS if check is not last] + [last]:
        print(check.__name__)  # shown where one fails
        await check(provider)
