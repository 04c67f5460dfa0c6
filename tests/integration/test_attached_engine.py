"""Servers that somebody else runs: they join while they are healthy, with the run's weights, and are never stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from agentrl.config.schema import JobConfig
from agentrl.controller.fleet.fleet import Fleet
from agentrl.controller.fleet.weights import Weights
from agentrl.controller.lifecycle.supervise import AttachedEngine
from agentrl.errors import ProcessFailed, UserError
from agentrl.inference.attached import check_attached
from agentrl.inference.config import EngineBackend, InferenceConfig
from agentrl.inference.engine import SamplingParams
from agentrl.observe.events import Observers
from agentrl.rollout.active_time import ActiveTime
from tests.fixtures.engine import EngineProcess, running_engine, save_random_model, tiny_llama_config


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("model"), tiny_llama_config())


@pytest.fixture
def server(model: Path, tmp_path: Path) -> Iterator[EngineProcess]:
    with running_engine(model, tmp_path) as engine:
        yield engine


def attached(url: str, *, patience_s: float) -> AttachedEngine:
    inference = InferenceConfig(backend=EngineBackend.attached, urls=[url], startup_timeout_s=patience_s)
    return AttachedEngine(0, url, JobConfig(inference=inference), observer=Observers())


def fleet_of(engine: AttachedEngine, weights: Weights, swing: Collection[str] = ()) -> Fleet:
    return Fleet(
        weights,
        ActiveTime(),
        turn_timeout_s=30.0,
        control_timeout_s=30.0,
        on_failure=lambda role: engine.report_failure(),
        swing=swing,
    )


async def test_an_attached_server_serves_the_runs_version_and_outlives_the_run(
    model: Path, server: EngineProcess
) -> None:
    engine = attached(server.url, patience_s=60.0)
    fleet = fleet_of(engine, Weights(str(model), 3))
    keeping = asyncio.create_task(engine.keep(fleet))
    await fleet.wait_up()
    generation = await fleet.sample("e-0000", "e-0000.t000", [20, 21, 22], SamplingParams(max_new_tokens=4))
    assert set(generation.versions) == {3}
    keeping.cancel()
    await asyncio.wait({keeping})
    assert fleet.num_up == 0
    assert server.process.poll() is None


async def test_a_server_that_is_restarted_while_it_is_lent_gives_its_memory_up_again(
    model: Path, tmp_path: Path
) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    with running_engine(model, tmp_path / "first") as first:
        port = urlsplit(first.url).port
        engine = attached(first.url, patience_s=60.0)
        fleet = fleet_of(engine, Weights(str(model), 3), swing=("engine-0",))
        keeping = asyncio.create_task(engine.keep(fleet))
        await fleet.wait_up()
        await fleet.lend()
        first.process.kill()
        first.process.wait()
        with running_engine(model, tmp_path / "second", "--port", str(port)) as second:
            while not await released(second.url):  # noqa: ASYNC110 (what is waited for happens in the engine)
                await asyncio.sleep(0.05)
            await fleet.take_back()
            await fleet.wait_up()
            generation = await fleet.sample("e-0000", "e-0000.t000", [20, 21, 22], SamplingParams(max_new_tokens=4))
            assert set(generation.versions) == {3}
        keeping.cancel()
        await asyncio.wait({keeping})


async def released(url: str) -> bool:
    """Whether its memory is given up, as its /health_generate says."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/health_generate") as reply:
        return reply.status == 503


async def test_a_server_that_is_gone_ends_the_run_only_after_its_time(server: EngineProcess, model: Path) -> None:
    engine = attached(server.url, patience_s=3.0)
    fleet = fleet_of(engine, Weights(str(model), 0))
    keeping = asyncio.create_task(engine.keep(fleet))
    await fleet.wait_up()
    server.process.kill()
    sampling = asyncio.create_task(
        fleet.sample("e-0001", "e-0001.t000", [20, 21, 22], SamplingParams(max_new_tokens=4))
    )
    with pytest.raises(ProcessFailed, match="no answer to /health"):
        await keeping
    sampling.cancel()


def test_a_dead_url_is_found_before_anything_starts(server: EngineProcess) -> None:
    check_attached([server.url])
    server.process.kill()
    server.process.wait()
    with pytest.raises(UserError, match=r"inference\.urls: http.*start the server"):
        check_attached([server.url])
