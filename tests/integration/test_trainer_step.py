"""A trainer's steps by real processes: what it reports and writes, at any world size and micro-batch split."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.tiny_model import make_tiny_model
from tests.fixtures.trainer_run import SmallController, make_batch, make_job, start_trainer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


async def test_one_step(model: Path, tmp_path: Path) -> None:
    controller = SmallController(batches=[make_batch(step=1), make_batch(step=2)])
    runner = await controller.start()
    with start_trainer(make_job(tmp_path, model, controller.url), world_size=2) as trainer:
        assert await trainer.wait() == [0, 0]
    await runner.cleanup()
    print(controller.reports)
