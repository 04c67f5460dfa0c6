"""Fixed splits of GPUs against the balance, with training counted."""

from __future__ import annotations

import pytest

from agentrl.simulation.balance_policies import measure_balance, scaled, splits
from agentrl.simulation.config import load_hardware, load_workload
from agentrl.simulation.life import World
from tests.simulation.small import WORKLOAD

SMALL = ["engines=3", "sandboxes=24", "engine.kv_tokens=140000", "trainer.step_per_token_s=4e-3"]


@pytest.mark.parametrize("mode", ["split_1", "split_2", "balance_1", "balance_3"])
def test_a_mode_accounts_for_all_gpus_and_depends_on_nothing_but_its_seed(mode: str) -> None:
    workload, hardware = load_workload("w_tb", WORKLOAD), load_hardware("h8_train", SMALL)
    figures = measure_balance(mode, workload, hardware, seed=0, steps=4)
    assert sum(figures.gpu_share.values()) == pytest.approx(1)
    assert figures.gpu_share["train"] > 0.1
    assert ("switch" in figures.gpu_share) is mode.startswith("balance")
    assert figures.step_s > 0
    assert set(figures.choices) <= {"return", "stay", "train", "generate"}
    assert figures == measure_balance(mode, workload, hardware, seed=0, steps=4)


def test_splits_leave_at_least_a_gpu_to_each_side() -> None:
    workload, hardware = load_workload("w_tb", WORKLOAD), load_hardware("h8_train", [*SMALL, "trainer.step_s=0"])
    assert splits(hardware) == ("split_1", "split_2")
    one_step = {mode: measure_balance(mode, workload, hardware, seed=0, steps=1) for mode in splits(hardware)}
    assert one_step["split_1"].step_s < 3600, "seconds since the start"
    assert one_step["split_1"].gpu_share["train"] > 0


def test_a_scale_model_has_the_same_step_times_at_the_same_relative_load() -> None:
    workload, hardware = load_workload("w_tb"), load_hardware("h8_train")
    fewer, smaller = scaled(workload, hardware, by=4)

    def step_s(law: object, running: int, tokens: int) -> float:
        return law.step_s + law.step_per_running_s * running + law.step_per_context_token_s * tokens  # type: ignore[attr-defined]

    assert step_s(smaller.engine, 16, 100_000) == pytest.approx(step_s(hardware.engine, 64, 400_000))
    assert (fewer.groups, smaller.engine.kv_tokens, smaller.sandboxes) == (8, 150_000, 64)
    with pytest.raises(ValueError, match="kv_tokens"):
        scaled(workload, hardware, by=8)


def test_turns_grow_evenly_over_the_groups_of_a_workload_that_drifts() -> None:
    steady = World(load_workload("w_tb"), seed=0)
    drifting = World(load_workload("w_tb", ["turns_growth=3", "turns_growth_groups=100"]), seed=0)
    for group, factor in ((0, 1.0), (50, 2.0), (100, 3.0), (500, 3.0)):
        before, after = (len(world.life(group, 0, 0).turns) for world in (steady, drifting))
        assert after == pytest.approx(before * factor, abs=2)
