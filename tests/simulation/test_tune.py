"""The search keeps what is fast and fair, spends its simulations on it, and never loses sight of the job's settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentrl.config.schema import JobConfig
from agentrl.simulation.config import load_hardware, load_workload
from agentrl.simulation.job import simulated_job
from agentrl.simulation.predict import Failed, Outcome, Predicted, predict
from agentrl.simulation.tune import (
    ROUNDS,
    Candidate,
    Settings,
    grid,
    num_candidates,
    num_simulations,
    rank,
    sample,
    search,
    settings_of,
    with_settings,
)
from tests.simulation.test_predict import small_job


def outcome(step_s: float, *, bias: float = 0.0, trained: float = 16) -> Predicted:
    laws = load_workload("quickstart"), load_hardware("laptop")
    run = predict(simulated_job(small_job(), *laws, steps=1).scenario)
    assert isinstance(run, Predicted)
    return replace(run, step_s=(step_s,), trained_per_step=trained, figures=replace(run.figures, bias_turns=bias))


def candidates(count: int) -> list[Settings]:
    return [(("schedule.window_groups", number),) for number in range(count)]


def test_the_fastest_is_first_and_had_the_most_seeds() -> None:
    template, asked = outcome(1.0), list[tuple[int, int]]()

    def run(tasks: Sequence[tuple[Settings, int]]) -> list[Outcome]:
        asked.extend((settings[0][1], seed) for settings, seed in tasks)
        return [replace(template, step_s=(10.0 - settings[0][1] + 0.1 * seed,)) for settings, seed in tasks]

    found = search(candidates(9), run=run, max_bias=0.05)
    assert found[0].settings == candidates(9)[8]
    assert len(found[0].outcomes) == sum(ROUNDS)
    assert len(found) == 9 and len(asked) <= num_simulations(9)
    assert {seed for who, seed in asked if who == 0} == set(range(sum(ROUNDS))), "the job's own settings go all the way"
    assert {seed for who, seed in asked if who == 1} == {0}


def test_failed_and_biased_ones_come_last() -> None:
    fast, fair = outcome(1.0, bias=-0.2), outcome(2.0)
    failed: Outcome = Failed(problem="stalled")
    order = [
        Candidate(settings=(), outcomes=[fair]),
        Candidate(settings=(), outcomes=[fast]),
        Candidate(settings=(), outcomes=[failed]),
    ]
    assert sorted([order[2], order[1], order[0]], key=lambda one: rank(one, 0.05)) == order


def test_a_batch_that_closes_with_fewer_episodes_is_no_faster_for_it() -> None:
    whole = Candidate(settings=(), outcomes=[outcome(2.0, trained=16)])
    half = Candidate(settings=(), outcomes=[outcome(1.5, trained=8)])
    assert rank(whole, 0.05) < rank(half, 0.05)


def test_the_budget_is_kept() -> None:
    assert all(num_simulations(num_candidates(budget)) <= budget for budget in (20, 60, 500))


def test_the_grid_begins_with_the_jobs_settings_and_keeps_its_gpus() -> None:
    config = JobConfig()
    four = replace(config, inference=replace(config.inference, num_engines=4))
    found = grid(four)
    assert found[0] == settings_of(four)
    assert with_settings(four, found[0]) == four
    layouts = {tuple(value for _, value in settings[:3]) for settings in found}
    assert (4, "all", 2) in layouts and (4, "1", 2) in layouts and (3, "none", 1) in layouts
    assert all(engines + (ranks if swing == "none" else 0) == 4 for engines, swing, ranks in layouts)


def test_the_sample_is_the_same_for_the_same_seed() -> None:
    settings = grid(JobConfig())
    assert sample(settings, 10, seed=1) == sample(settings, 10, seed=1) != sample(settings, 10, seed=2)
    assert sample(settings, 10, seed=1)[0] == settings[0]
