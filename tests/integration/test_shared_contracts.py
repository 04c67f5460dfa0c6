"""The real engine and sandboxes keep the promises that the simulated ones keep."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from agentrl.inference.client import SGLangClient
from tests.contracts.engine import ENGINE_CHECKS, PUBLICATION_CHECKS, EngineCheck, PublicationCheck
from tests.contracts.sandbox import SANDBOX_CHECKS, SandboxCheck
from tests.fixtures.engine import running_engine, save_random_model, tiny_llama_config
from tests.fixtures.sandboxes import bubblewrap


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("model"), tiny_llama_config(max_position_embeddings=2048))


@pytest.fixture(scope="module")
def url(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    options = ["--max-running-requests", "16", "--context-length", "2048"]
    with running_engine(weights, tmp_path_factory.mktemp("engine"), *options) as engine:
        yield engine.url


@pytest.fixture
async def client(url: str) -> AsyncIterator[SGLangClient]:
    client = SGLangClient("engine-0", url, request_timeout_s=60.0)
    yield client
    await client.close()


@pytest.mark.parametrize("check", ENGINE_CHECKS, ids=lambda check: check.__name__)
async def test_embedded_engine(check: EngineCheck, client: SGLangClient) -> None:
    await check(client)


@pytest.mark.parametrize("check", PUBLICATION_CHECKS, ids=lambda check: check.__name__)
async def test_publication_to_an_embedded_engine(check: PublicationCheck, client: SGLangClient, weights: Path) -> None:
    await check(client, str(weights))


@pytest.mark.parametrize("check", SANDBOX_CHECKS, ids=lambda check: check.__name__)
async def test_bubblewrap(check: SandboxCheck, tmp_path: Path) -> None:
    async with bubblewrap(tmp_path / "state") as provider:
        await check(provider)
