"""Predictions: the job's own settings in virtual time, the same trace for the same seed, notes on what does not fit."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest

from agentrl.bench.forecast import Forecast, as_json, forecast, num_simulations
from agentrl.config.schema import JobConfig
from agentrl.rollout.config import ToolFormat
from agentrl.simulation.bound import bound, unloaded_s
from agentrl.simulation.config import load_hardware, load_workload
from agentrl.simulation.job import simulated_job, usual_steps, usual_workload
from agentrl.simulation.life import World, within_budget
from agentrl.simulation.predict import Failed, Predicted, at_seed, mechanisms_of, predict
from agentrl.simulation.run import Scenario
from tests.simulation.small import hardware, scenario, workload


def small_job(**schedule: Any) -> JobConfig:
    config = JobConfig()
    return replace(
        config,
        schedule=replace(config.schedule, steps=3, groups_per_step=4, window_groups=8, **schedule),
        algorithm=replace(config.algorithm, group_size=4),
        agent=replace(config.agent, max_turns=3, max_turn_tokens=8, max_episode_tokens=128),
        inference=replace(config.inference, context_length=160),
    )


def quickstart(config: JobConfig, **changes: Any) -> Scenario:
    return simulated_job(config, load_workload("quickstart"), load_hardware("laptop"), **changes).scenario


def trace(chosen: Scenario) -> str:
    lines = io.StringIO()
    assert isinstance(predict(chosen, trace=lines), Predicted)
    return lines.getvalue()


def test_equal_seeds_leave_equal_traces_byte_for_byte() -> None:
    chosen = quickstart(small_job())
    assert trace(chosen) == trace(chosen) != trace(at_seed(chosen, 1))
    events = [json.loads(line) for line in trace(chosen).splitlines()]
    assert {"episode", "group", "batch", "step", "published"} <= {event["event"] for event in events}
    times = [event["at_s"] for event in events]
    assert times == sorted(times)


def test_a_prediction_has_every_step_and_all_gpu_time() -> None:
    run = predict(scenario(steps=5, machines=["trainer.step_s=10"], schedule={"swing": "all"}))
    assert isinstance(run, Predicted)
    assert (len(run.step_s), len(run.time_to_batch_s)) == (5, 5)
    assert sum(run.gpu_s.values()) == pytest.approx(2 * sum(run.step_s), rel=0.01)
    assert run.bound.seconds <= run.steady_step_s
    assert run.trained_per_step == 16


def test_a_run_that_would_fail_says_why() -> None:
    chosen = quickstart(small_job(stall_timeout_s=0.05))
    outcome = predict(chosen)
    assert isinstance(outcome, Failed)
    assert "0.05" in outcome.problem


def test_the_jobs_own_numbers_hold_and_what_the_laws_say_otherwise_is_noted() -> None:
    job = simulated_job(small_job(), load_workload("quickstart"), load_hardware("laptop"), steps=2)
    chosen = job.scenario
    assert (chosen.workload.groups, chosen.workload.group_size) == (4, 4)
    assert chosen.hardware.engine.context_tokens == 160
    assert (chosen.config.schedule.steps, chosen.config.schedule.eval_tasks) == (2, 0)
    assert any("2 of 3 steps" in note for note in job.notes)
    assert any("group_size 4 (laws: 16)" in note for note in job.notes)


def test_laws_beyond_the_jobs_limits_are_noted_and_cut() -> None:
    laws = load_workload("quickstart", ["turns={law: lognormal, median: 5, sigma: 0.5, cap: 20}"])
    job = simulated_job(small_job(), laws, load_hardware("laptop"))
    assert any("turns up to 20 > agent.max_turns 3" in note for note in job.notes)
    run = predict(job.scenario)
    assert isinstance(run, Predicted)
    assert abs(run.figures.bias_turns) < 0.05, "what was launched is counted as cut, too"


def test_a_workload_of_other_agents_brings_its_own_budgets_and_says_so() -> None:
    job = simulated_job(small_job(), load_workload("w_tb"), load_hardware("h8"))
    assert any("prompts of 3000 tokens exceed agent.max_episode_tokens 128" in note for note in job.notes)
    assert job.scenario.config.agent.max_turns == 100
    assert job.scenario.hardware.engine.kv_tokens == 600_000
    assert job.scenario.hardware.engines == 1, "counts are still the job's"


def test_a_small_job_has_small_laws_by_default() -> None:
    assert usual_workload(JobConfig())[0] == "quickstart"


def test_jobs_of_long_episodes_are_simulated_for_fewer_steps() -> None:
    config = replace(small_job(), schedule=replace(small_job().schedule, steps=50, groups_per_step=32))
    steps = [usual_steps(config, load_workload(name)) for name in ("quickstart", "w_tb")]
    assert steps == [8, 6]


def test_any_tool_format_can_be_simulated() -> None:
    config = small_job()
    hermes = replace(config, agent=replace(config.agent, format=ToolFormat.hermes))
    assert predict(quickstart(hermes)) == predict(quickstart(config))


def test_a_forecast_has_what_each_mechanism_is_worth() -> None:
    chosen = quickstart(small_job())
    found = forecast(chosen, seeds=2, full_steps=10, jobs=1)
    assert isinstance(found, Forecast)
    assert [one.name for one in found.without] == [mechanism.name for mechanism in mechanisms_of(chosen)]
    assert found.run_s > 3 * found.step.mean
    assert found.binding in found.bounds
    assert sum(found.gpu_shares.values()) == pytest.approx(1)
    assert num_simulations(chosen, seeds=2, mechanisms=True) == 2 * (1 + len(found.without))
    assert json.loads(json.dumps(as_json(found)))["bound_by"] == found.binding


def test_processes_give_what_one_process_gives() -> None:
    chosen = quickstart(small_job(), steps=1)
    alone, together = (forecast(chosen, seeds=2, full_steps=1, mechanisms=False, jobs=jobs) for jobs in (1, 2))
    assert alone == together


def test_an_episode_counts_as_far_as_its_token_budget_reaches() -> None:
    laws = workload("max_episode_tokens=2000", "turns.median=12", "turns.sigma=0")
    lives = [World(laws, seed=0).life(group, 0, 0) for group in range(20)]
    cut = [within_budget(life, laws) for life in lives]
    assert any(len(short.turns) < len(life.turns) for short, life in zip(cut, lives, strict=True))
    assert all(
        laws.prompt_tokens + sum(turn.generated_tokens for turn in life.turns) <= laws.max_episode_tokens
        for life in cut
    )
    roomy = workload("turns.median=12", "turns.sigma=0")
    assert all(within_budget(life, roomy) == life for life in lives)


def test_bounds_are_those_of_the_draw() -> None:
    laws, machine = workload(), hardware()
    lives = [World(laws, seed=0).life(group, member, 0) for group in range(4) for member in range(4)]
    limits = bound(lives, laws, machine, sandboxes=4, warm=False)
    alone = [unloaded_s(life, laws, machine.engine, warm=False) for life in lives]
    assert limits.longest == max(alone)
    assert limits.sandboxes == pytest.approx(sum(alone) / 4)
    assert limits.seconds == limits.by_resource()[limits.resource]
    spread = bound(lives, laws, machine, sandboxes=4, warm=True, batches=2, carry_over=True)
    assert (spread.longest, spread.starts) == (0, limits.starts / 2), "nobody waits, but every sandbox is started"
    assert bound(lives, laws, machine, sandboxes=4, warm=True).starts == 0, "those of one batch were there before"
    assert spread.engines == pytest.approx(limits.engines / 2)
