"""Optional parts of the trained model: adapters, activation checkpointing; and that all ranks train one model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from agentrl.trainer.config import AlgorithmConfig, TrainerConfig
from agentrl.trainer.job import ExitReport, checkpoint_folder, weights_folder
from agentrl.wire import StepDone
from tests.fixtures.tiny_model import make_tiny_model
from tests.fixtures.trainer_run import SmallController, make_batch, make_job, start_trainer

BATCHES = [make_batch(step=step) for step in (1, 2, 3)]
ADAPTED = ["q_proj", "down_proj"]
LORA = TrainerConfig(lr=1e-2, lr_warmup_steps=0, lora_rank=2, lora_alpha=4.0, lora_targets=ADAPTED)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


async def _train(
    model: Path, run_dir: Path, trainer: TrainerConfig, *, steps: int = 3, world_size: int = 1, code: int = 0
) -> list[StepDone]:
    controller = SmallController(batches=BATCHES[:steps])
    runner = await controller.start()
    algorithm = AlgorithmConfig(group_size=4, updates_per_step=2, kl_coef=0.1)
    job = make_job(run_dir, model, controller.url, trainer=trainer, algorithm=algorithm)
    with start_trainer(job, world_size=world_size) as processes:
        assert await processes.wait() == [code] * world_size
    await runner.cleanup()
    return controller.reports


def _weights(run_dir: Path, version: int) -> dict[str, Tensor]:
    return load_file(weights_folder(run_dir, version) / "model.safetensors")


def _close(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.allclose(one[name], other[name], rtol=1e-3, atol=1e-4) for name in one | other)


async def test_adapters_are_published_as_the_model_that_engines_know(model: Path, tmp_path: Path) -> None:
    await _train(model, tmp_path, LORA)
    start, trained = load_file(model / "model.safetensors"), _weights(tmp_path, 3)
    assert trained.keys() == start.keys()
    changed = {name for name in start if not torch.equal(start[name], trained[name])}
    assert changed == {name for name in start if name.split(".")[-2] in ADAPTED}
    for name in changed:
        singular = torch.linalg.svdvals(trained[name] - start[name])
        assert singular[1] > 1e-4
        assert singular[2:].max() < 1e-6  # a product of rank 2


async def test_adapters_resume_on_another_number_of_ranks(model: Path, tmp_path: Path) -> None:
    await _train(model, tmp_path / "undisturbed", LORA)
    await _train(model, tmp_path / "resumed", LORA, steps=2, world_size=2)
    (again, third) = await _train(model, tmp_path / "resumed", LORA, steps=3, world_size=1)
    assert (again.version, third.version) == (2, 3)
    assert _close(_weights(tmp_path / "undisturbed", 3), _weights(tmp_path / "resumed", 3))
    saved = sum(path.stat().st_size for path in checkpoint_folder(tmp_path / "resumed", 3).glob("*.distcp"))
    assert saved < (model / "model.safetensors").stat().st_size / 2  # adapters and their moments, no frozen weight


async def test_layers_that_no_model_has_end_the_trainer_with_the_setting(model: Path, tmp_path: Path) -> None:
    wrong = TrainerConfig(lora_rank=2, lora_targets=["query"])
    await _train(model, tmp_path, wrong, steps=1, code=1)
    report = ExitReport.load(tmp_path / "trainer.json")
    assert report is not None
    assert "trainer.lora_targets: the model has no linear layer named query" in report.message


async def test_recomputed_activations_give_the_same_weights(model: Path, tmp_path: Path) -> None:
    plain = TrainerConfig(lr_warmup_steps=0)
    recomputed = TrainerConfig(lr_warmup_steps=0, activation_checkpointing=True)
    await _train(model, tmp_path / "plain", plain, steps=2, world_size=2)
    await _train(model, tmp_path / "again", recomputed, steps=2, world_size=2)
    one, other = _weights(tmp_path / "plain", 2), _weights(tmp_path / "again", 2)
    assert all(torch.allclose(one[name], other[name], rtol=1e-5, atol=1e-6) for name in one | other)


async def test_ranks_that_read_nothing_train_the_model_that_rank_0_read(model: Path, tmp_path: Path) -> None:
    config = TrainerConfig(lr=1e-3, lr_warmup_steps=0)
    (one,) = await _train(model, tmp_path / "one", config, steps=1)
    (three,) = await _train(model, tmp_path / "three", config, steps=1, world_size=3)
    assert three.metrics["entropy"] == pytest.approx(one.metrics["entropy"], rel=1e-5)
    assert three.metrics["kl_ref"] == pytest.approx(one.metrics["kl_ref"], abs=1e-6)
    assert _close(_weights(tmp_path / "one", 1), _weights(tmp_path / "three", 1))
