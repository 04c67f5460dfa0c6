"""A trainer's steps by real processes: one update, whatever the world size and the split into micro-batches."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from agentrl.trainer.advantages import group_advantages
from agentrl.trainer.config import Advantage, Aggregation, AlgorithmConfig, Importance, Surrogate, TrainerConfig
from agentrl.trainer.job import checkpoint_folder, weights_folder
from agentrl.wire import PROBE_FILE, StepDone, TrainBatch
from tests.fixtures.tiny_model import make_tiny_model
from tests.fixtures.trainer_run import SmallController, make_batch, make_job, start_trainer

BETA1 = TrainerConfig().beta1


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


async def _train(
    model: Path,
    run_dir: Path,
    batches: list[TrainBatch],
    *,
    world_size: int = 1,
    micro_batch_tokens: int = 8192,
    algorithm: AlgorithmConfig | None = None,
    temperature: float = 1.0,
) -> list[StepDone]:
    controller = SmallController(batches=batches)
    runner = await controller.start()
    config = TrainerConfig(lr=1e-3, lr_warmup_steps=0, grad_clip=1e9, micro_batch_tokens=micro_batch_tokens)
    job = make_job(run_dir, model, controller.url, trainer=config, algorithm=algorithm, temperature=temperature)
    with start_trainer(job, world_size=world_size) as trainer:
        assert await trainer.wait() == [0] * world_size
    await runner.cleanup()
    return controller.reports


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def _weights(run_dir: Path, version: int = 1) -> dict[str, Tensor]:
    return load_file(weights_folder(run_dir, version) / "model.safetensors")


def _gradient(run_dir: Path) -> dict[str, Tensor]:
    """The gradient of step 1: AdamW's first moment after it is (1 - beta1) times the gradient."""
    dcp_to_torch_save(checkpoint_folder(run_dir, 1), run_dir / "state.pt")
    state = torch.load(run_dir / "state.pt", weights_only=False)["optimizer"]["state"]
    return {name: moments["exp_avg"] / (1 - BETA1) for name, moments in state.items()}


def _relative_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    difference = torch.cat([(one[name] - other[name]).flatten() for name in one])
    return float(difference.norm() / torch.cat([t.flatten() for t in one.values()]).norm())


def _plain_gradient(
    model: Path, batch: TrainBatch, *, cap: float, kl_coef: float, temperature: float
) -> dict[str, Tensor]:
    """The gradient of the first update by the formulas, one episode at a time, full logits, float64."""
    from transformers import LlamaForCausalLM

    policy = LlamaForCausalLM.from_pretrained(model, dtype=torch.float64)
    trajectories = batch.trajectories
    advantages = group_advantages(
        [t.reward for t in trajectories], [t.group for t in trajectories], Advantage.mean
    ).tolist()
    loss = torch.zeros((), dtype=torch.float64)
    for trajectory, advantage in zip(trajectories, advantages, strict=True):
        ids = torch.tensor(trajectory.ids_array().astype(np.int64))
        table = policy(input_ids=ids[None]).logits[0].div(temperature).log_softmax(-1)
        for position in np.flatnonzero(trajectory.mask_array()).tolist():
            current = table[position - 1, ids[position]]
            weight = min(float(torch.exp(current.detach() - trajectory.logprobs_array()[position])), cap)
            loss = loss - weight * torch.exp(current - current.detach()) * advantage
            rho = torch.exp(current.detach() - current)  # the reference is the start model
            loss = loss + kl_coef * (rho - 1 - torch.log(rho))
    (loss / sum(t.num_sampled for t in trajectories)).backward()
    return {name: p.grad.float() for name, p in policy.named_parameters() if p.grad is not None}


async def test_the_update_follows_the_formulas(model: Path, tmp_path: Path) -> None:
    batch = make_batch()
    algorithm = AlgorithmConfig(importance_cap=1.5, kl_coef=0.3)
    (done,) = await _train(model, tmp_path, [batch], world_size=2, algorithm=algorithm, temperature=0.7)
    expected = _plain_gradient(model, batch, cap=1.5, kl_coef=0.3, temperature=0.7)
    assert _relative_difference(_gradient(tmp_path), expected) < 1e-4
    norm = torch.cat([t.flatten() for t in expected.values()]).norm()
    assert done.metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-4)


@pytest.mark.parametrize(("world_size", "micro_batch_tokens"), [(1, 60), (2, 8192), (2, 60), (4, 100), (4, 8192)])
async def test_ranks_and_micro_batches_do_not_change_the_update(
    model: Path, tmp_path: Path, world_size: int, micro_batch_tokens: int
) -> None:
    batch = make_batch(num_groups=1, group_size=3)  # fewer episodes than ranks: some ranks compute dummies
    (one,) = await _train(model, tmp_path / "one", [batch])
    (other,) = await _train(
        model, tmp_path / "other", [batch], world_size=world_size, micro_batch_tokens=micro_batch_tokens
    )
    assert _relative_difference(_gradient(tmp_path / "one"), _gradient(tmp_path / "other")) < 1e-5
    assert _relative_difference(_weights(tmp_path / "one"), _weights(tmp_path / "other")) < 1e-4
    timings = {"step_s", "forward_s", "export_s", "checkpoint_s"}
    assert one.metrics.keys() == other.metrics.keys()
    for name in one.metrics.keys() - timings:
        assert other.metrics[name] == pytest.approx(one.metrics[name], rel=1e-4, abs=1e-6), name


REJECTING = AlgorithmConfig(
    surrogate=Surrogate.gspo,
    importance=Importance.sequence,
    importance_cap=5.0,
    token_ratio_max=2.0,
    veto_ratio=0.15,
    aggregation=Aggregation.sequence_mean,
    updates_per_step=2,
)
BANDED = AlgorithmConfig(
    token_ratio_min=0.5, aggregation=Aggregation.constant, aggregation_tokens=9, drop_divergence=0.3
)


@pytest.mark.parametrize("algorithm", [REJECTING, BANDED], ids=["rejecting", "banded"])
async def test_a_denominator_counts_what_all_ranks_and_micro_batches_kept(
    model: Path, tmp_path: Path, algorithm: AlgorithmConfig
) -> None:
    batch = make_batch(max_tokens=30)  # four passes on one rank, two on each of two, one on each of four
    runs = []
    for world_size, micro_batch_tokens in ((1, 92), (2, 150), (4, 8192)):
        run_dir = tmp_path / str(world_size)
        (done,) = await _train(
            model,
            run_dir,
            [batch],
            world_size=world_size,
            micro_batch_tokens=micro_batch_tokens,
            algorithm=algorithm,
        )
        runs.append((run_dir, done.metrics))
    (one_dir, one), *others = runs
    for run_dir, metrics in others:
        for name in ("loss", "grad_norm", "rejected_share", "left_out_share/task"):
            assert metrics[name] == pytest.approx(one[name], rel=1e-4, abs=1e-6), name
        assert _relative_difference(_gradient(one_dir), _gradient(run_dir)) < 1e-4
    assert 0 < one["left_out_share/task"] < 1
    if algorithm is BANDED:
        assert 0 < one["groups_drop"] < 3


async def test_a_batch_of_which_nothing_is_kept_leaves_weights_and_optimizer(model: Path, tmp_path: Path) -> None:
    algorithm = AlgorithmConfig(token_ratio_max=1e-6)
    batches = [make_batch(step=1), make_batch(step=2)]
    first, second = await _train(model, tmp_path, batches, algorithm=algorithm)
    assert (first.metrics["rejected_share"], second.metrics["grad_norm"]) == (1, 0)
    assert _relative_difference(_weights(tmp_path, 2), load_file(model / "model.safetensors")) == 0


async def test_several_updates_a_step_do_not_depend_on_the_world_size(model: Path, tmp_path: Path) -> None:
    algorithm = AlgorithmConfig(updates_per_step=2, kl_coef=0.1)
    batches = [make_batch(step=1), make_batch(step=2, version=0)]
    one = await _train(model, tmp_path / "one", batches, algorithm=algorithm)
    two = await _train(model, tmp_path / "two", batches, world_size=2, micro_batch_tokens=60, algorithm=algorithm)
    assert [done.metrics["loss"] for done in two] == pytest.approx([done.metrics["loss"] for done in one], rel=1e-3)
    assert _relative_difference(_weights(tmp_path / "one", 2), _weights(tmp_path / "two", 2)) < 1e-3
    assert [done.metrics["lag_max"] for done in one] == [0, 1]
    assert "mismatch_k1" not in one[1].metrics  # no token was sampled by the current version
    assert one[1].metrics["kl_ref"] > 0


async def test_the_same_batch_on_the_same_ranks_gives_the_same_bits(model: Path, tmp_path: Path) -> None:
    batches = [make_batch(step=1), make_batch(step=2)]
    for name in ("one", "again"):
        await _train(model, tmp_path / name, batches, world_size=2, algorithm=AlgorithmConfig(updates_per_step=2))
    one, again = _weights(tmp_path / "one", 2), _weights(tmp_path / "again", 2)
    assert all(torch.equal(one[name], again[name]) for name in one | again)


async def test_a_group_without_a_difference_in_reward_leaves_the_weights(model: Path, tmp_path: Path) -> None:
    batch = make_batch(num_groups=2, group_size=1)
    (done,) = await _train(model, tmp_path, [batch])
    assert done.metrics["grad_norm"] == 0
    assert _relative_difference(_weights(tmp_path), load_file(model / "model.safetensors")) == 0


@pytest.mark.parametrize("tied", [True, False])
async def test_published_weights_are_a_model_folder(tmp_path: Path, tied: bool) -> None:
    from transformers import AutoModelForCausalLM

    start = make_tiny_model(tmp_path / "start", tied=tied)
    (done,) = await _train(start, tmp_path / "run", [make_batch()], world_size=2)
    folder = Path(done.weights_path)
    assert folder == weights_folder(tmp_path / "run", 1)
    assert _names(folder) == _names(start) | {PROBE_FILE}
    assert ("lm_head.weight" in load_file(folder / "model.safetensors")) is not tied
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"
    _, loading = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))


async def test_old_checkpoints_are_pruned_and_weights_left_to_the_controller(model: Path, tmp_path: Path) -> None:
    await _train(model, tmp_path, [make_batch(step=step) for step in (1, 2, 3)])
    assert _names(tmp_path / "checkpoints") == {"step-000002", "step-000003"}
    assert _names(tmp_path / "weights") == {"v000001", "v000002", "v000003"}
