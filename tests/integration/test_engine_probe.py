"""Real engines held against a real trainer's word: equal weights agree, damaged and stale ones are found out."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from agentrl.controller.fleet.fleet import Fleet
from agentrl.controller.fleet.publication import TOLERANCES, read_probe
from agentrl.controller.fleet.weights import Weights
from agentrl.errors import EngineMistrusted
from agentrl.inference.client import SGLangClient
from agentrl.inference.config import Dtype
from agentrl.inference.engine import SamplingParams
from agentrl.rollout.active_time import ActiveTime
from agentrl.trainer.job import weights_folder
from tests.fixtures.engine import running_engine
from tests.fixtures.tiny_model import make_tiny_model
from tests.fixtures.trainer_run import SmallController, make_batch, make_job, start_trainer


@dataclass
class Trained:
    """A model, and a run of one step on it by a trainer of two ranks."""

    start: Path
    weights: Weights


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    start, run_dir = make_tiny_model(tmp_path_factory.mktemp("model")), tmp_path_factory.mktemp("run")
    asyncio.run(train(start, run_dir))
    folder = str(weights_folder(run_dir, 1))
    return Trained(start, Weights(folder, 1, read_probe(folder)))


async def train(start: Path, run_dir: Path) -> None:
    controller = SmallController(batches=[make_batch()])
    runner = await controller.start()
    with start_trainer(make_job(run_dir, start, controller.url), world_size=2) as trainer:
        assert await trainer.wait() == [0, 0]
    await runner.cleanup()


@pytest.fixture(scope="module")
def two_engines(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """In float32 and in bfloat16, on the start's weights."""
    workdirs = [tmp_path_factory.mktemp(name) for name in ("float32", "bfloat16")]
    with (
        running_engine(trained.start, workdirs[0]) as exact,
        running_engine(trained.start, workdirs[1], "--dtype", "bfloat16") as rough,
    ):
        yield [exact.url, rough.url]


@asynccontextmanager
async def fleet_of(start: Path, urls: list[str], quarantined: dict[str, str], tolerance: float) -> AsyncIterator[Fleet]:
    """Given the start's weights, whatever they had."""
    fleet = Fleet(
        Weights(str(start), 0),
        ActiveTime(),
        turn_timeout_s=60.0,
        control_timeout_s=60.0,
        on_failure=lambda _: None,
        on_quarantine=quarantined.__setitem__,
        probe_tolerance=tolerance,
    )
    clients = [SGLangClient(f"engine-{index}", url, request_timeout_s=60.0) for index, url in enumerate(urls)]
    for client in clients:
        await client.update_weights(str(start), 0)
        await fleet.admit(client)
    yield fleet
    for client in clients:
        await client.close()


async def publish(fleet: Fleet, weights: Weights) -> int:
    await fleet.suspend()
    serving = await fleet.publish(weights)
    await fleet.resume()
    return serving


def damaged(weights: Weights, target: Path) -> Weights:
    """The same but for a little noise on every tensor; the trainer's word stays."""
    shutil.copytree(weights.path, target)
    file = target / "model.safetensors"
    generator = torch.Generator().manual_seed(3)
    noisy = {name: t + 0.02 * torch.randn(t.shape, generator=generator) for name, t in load_file(file).items()}
    save_file(noisy, file, metadata={"format": "pt"})
    return Weights(str(target), weights.version, weights.probe)


async def test_equal_weights_agree_and_a_rougher_number_format_is_named(
    trained: Trained, two_engines: list[str]
) -> None:
    quarantined: dict[str, str] = {}
    async with fleet_of(trained.start, two_engines, quarantined, TOLERANCES[Dtype.float32] / 10) as fleet:
        assert await publish(fleet, trained.weights) == 1
        assert fleet.probe_difference is not None and fleet.probe_difference < 1e-5
        generation = await fleet.sample("e0", "e0.t000.s000", [3, 4, 5], SamplingParams(max_new_tokens=4))
        assert set(generation.versions) == {1}
    assert set(quarantined) == {"engine-1"}
    assert "trainer's for version 1" in quarantined["engine-1"]
    assert quarantined["engine-1"].endswith("precision, it computes in bfloat16")


async def test_within_the_tolerance_of_its_number_format_the_rougher_one_serves(
    trained: Trained, two_engines: list[str]
) -> None:
    quarantined: dict[str, str] = {}
    async with fleet_of(trained.start, two_engines, quarantined, TOLERANCES[Dtype.bfloat16]) as fleet:
        assert await publish(fleet, trained.weights) == 2
        assert fleet.probe_difference is not None and 1e-5 < fleet.probe_difference < TOLERANCES[Dtype.bfloat16]
    assert quarantined == {}


async def test_damaged_weights_serve_nobody_until_they_are_whole(
    trained: Trained, two_engines: list[str], tmp_path: Path
) -> None:
    quarantined: dict[str, str] = {}
    async with fleet_of(trained.start, two_engines[:1], quarantined, TOLERANCES[Dtype.float32]) as fleet:
        assert await publish(fleet, damaged(trained.weights, tmp_path / "damaged")) == 0
        assert fleet.num_up == 0
        await publish(fleet, trained.weights)
        engine = SGLangClient("engine-0", two_engines[0], request_timeout_s=60.0)
        await engine.update_weights(trained.weights.path, 1)
        await fleet.admit(engine)
        assert fleet.num_up == 1
        await engine.close()
    assert "stale or perturbed" in quarantined["engine-0"]


async def test_an_engine_that_calls_old_weights_new_is_not_let_in(trained: Trained, two_engines: list[str]) -> None:
    quarantined: dict[str, str] = {}
    async with fleet_of(trained.start, [], quarantined, TOLERANCES[Dtype.float32]) as fleet:
        await publish(fleet, trained.weights)
        engine = SGLangClient("engine-0", two_engines[0], request_timeout_s=60.0)
        await engine.update_weights(str(trained.start), 1)
        with pytest.raises(EngineMistrusted, match="version 1"):
            await fleet.admit(engine)
        assert fleet.num_up == 0
        await fleet.admit(engine)  # It gets the weights again, and is believed now.
        assert fleet.num_up == 1
        await engine.close()
    assert set(quarantined) == {"engine-0"}
