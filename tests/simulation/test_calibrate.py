"""Laws that are fitted to a run predict that run: the loop from laws to a ledger and back, closed in virtual time."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest

from agentrl.errors import UserError
from agentrl.ledger.ledger import Ledger
from agentrl.ledger.reader import LedgerReader
from agentrl.simulation.calibrate import Calibration, calibrate
from agentrl.simulation.compare import compare, real_steps
from agentrl.simulation.config import load_hardware, load_workload
from agentrl.simulation.job import simulated_job
from agentrl.simulation.laws import Quantiles
from agentrl.simulation.loop import simulate
from agentrl.simulation.observed import Observed, observe, recorded_groups
from agentrl.simulation.predict import Predicted, predict
from agentrl.simulation.run import Scenario, build
from tests.simulation.small import scenario

MACHINES = ["trainer.step_s=5", "trainer.step_per_token_s=1e-4", "engine.update_weights_s=0.5"]
LAWS = ["failure_share=0.05", "start_hang_share=0"]


def job(steps: int = 6) -> Scenario:
    made = scenario(steps=steps, laws=LAWS, machines=MACHINES, schedule={"swing": "all"})
    return replace(made, config=replace(made.config, observe=replace(made.config.observe, keep_trajectories=0)))


@lru_cache(maxsize=1)
def ran() -> LedgerReader:
    """The ledger of a run of six steps by known laws."""

    async def main() -> LedgerReader:
        simulation = build(job(), Ledger.take(":memory:"))
        await simulation.run()
        return LedgerReader.of(simulation.brain.ledger)

    return simulate(main(), seed=0)


@lru_cache(maxsize=1)
def fitted() -> Calibration:
    config = job().config
    engine = job().hardware.engine
    inference = replace(
        config.inference,
        max_total_tokens=engine.kv_tokens,
        context_length=engine.context_tokens,
        max_running_requests=engine.max_running,
    )
    return calibrate(observe(ran()), replace(config, inference=inference))


def test_the_ledger_tells_what_the_laws_said() -> None:
    observed, laws = observe(ran()), job().workload
    assert len(observed.turns) > 80
    assert set(observed.prompt_tokens) == {laws.prompt_tokens}
    assert 0 < observed.infrastructure_share < 0.15
    assert max(observed.generated_tokens) <= laws.max_turn_tokens
    assert len(observed.train) == 6


def test_fitted_laws_lie_close_to_their_samples() -> None:
    by_name = {fit.name: fit for fit in fitted().fits}
    assert set(by_name) == {
        "turns", "generated_tokens", "observation_tokens", "tool_s", "verifier_s", "start_cold_s",
        "generation_s (engine)",
    }  # fmt: skip
    assert all(fit.num_samples > 80 for fit in by_name.values())
    assert all(fit.ks < 0.12 for name, fit in by_name.items() if name != "turns")


def test_starts_are_known_behind_a_warm_pool() -> None:
    """An episode that is handed a warm sandbox waits for nothing; the laws still say what a start takes."""
    pooled = job(steps=2)
    pooled = replace(pooled, config=replace(pooled.config, sandbox=replace(pooled.config.sandbox, warm_max=8)))

    async def main() -> Observed:
        simulation = build(pooled, Ledger.take(":memory:"))
        await simulation.run()
        return observe(LedgerReader.of(simulation.brain.ledger))

    observed = simulate(main(), seed=0)
    assert len(observed.starts_s) >= len(observed.turns)
    law = calibrate(observed, pooled.config).workload.start_cold_s
    assert isinstance(law, Quantiles)
    assert law.at_share(0.5) == pytest.approx(25, rel=0.25), "as in the laws that the run was simulated by"


def test_the_trainers_law_is_found_again() -> None:
    law = fitted().hardware.trainer
    lending_s = job().hardware.engine.release_memory_s
    assert law.step_s == pytest.approx(5 + lending_s, rel=0.1), "a swing engine is lent before each step"
    assert law.step_per_token_s == pytest.approx(1e-4, rel=0.2)


def test_the_simulation_with_fitted_laws_predicts_the_run_it_was_fitted_to() -> None:
    calibration = fitted()
    config = replace(
        job().config,
        inference=replace(
            job().config.inference,
            max_total_tokens=calibration.hardware.engine.kv_tokens,
            context_length=calibration.hardware.engine.context_tokens,
        ),
    )
    chosen = simulated_job(config, calibration.workload, calibration.hardware).scenario
    runs = [predict(replace(chosen, config=replace(chosen.config, seed=seed))) for seed in range(3)]
    rows = compare(real_steps(ran()), [run for run in runs if isinstance(run, Predicted)])
    assert [row.name for row in rows] == [
        "time to batch, mean s", "time to batch, p50 s", "time to batch, p95 s", "step, mean s",
    ]  # fmt: skip
    mean = rows[-1]
    assert abs(mean.difference) < 0.35, f"{mean}: three short runs against one, whose episodes have a heavy tail"


def test_fitted_laws_can_be_written_and_read_again(tmp_path: Path) -> None:
    for name, text in zip(("workload", "hardware"), fitted().as_yaml("a test"), strict=True):
        (tmp_path / f"{name}.yaml").write_text(text)
    workload = load_workload(str(tmp_path / "workload.yaml"))
    hardware = load_hardware(str(tmp_path / "hardware.yaml"))
    assert workload.prompt_tokens == fitted().workload.prompt_tokens
    assert hardware.engine.step_s == pytest.approx(fitted().hardware.engine.step_s, rel=1e-3)


def test_recorded_groups_are_the_episodes_that_count() -> None:
    groups = recorded_groups(ran(), starts_at_once=job().config.sandbox.start_concurrency)
    rewarded = [row for row in ran().episodes() if row.reward is not None]
    assert sum(map(len, groups)) == len(rewarded)
    assert sum(len(one.turns) for group in groups for one in group) == sum(row.num_turns or 0 for row in rewarded)


def test_too_few_episodes_are_refused() -> None:
    few: Observed = replace(observe(ran()), turns=(1, 2))
    with pytest.raises(UserError, match=r"2 usable episodes are too few .*at least 20"):
        calibrate(few, job().config)
