"""What simulation says about a real comparison, from the naive side's own ledger: its laws, and its episodes as they
were. Naive again, to see whether the simulation is right; full, as the prediction that is then checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from agentrl.config.schema import JobConfig
from agentrl.errors import ProcessFailed
from agentrl.ledger.reader import LedgerReader
from agentrl.simulation.baselines import Baseline, run_baseline
from agentrl.simulation.calibrate import Calibration, calibrate
from agentrl.simulation.job import simulated_job
from agentrl.simulation.loop import simulate
from agentrl.simulation.observed import observe, recorded_groups
from agentrl.simulation.predict import Failed, predict
from agentrl.simulation.replay import Recorded, Replay
from agentrl.simulation.run import Scenario


@dataclass(frozen=True, kw_only=True)
class PredictedReal:
    """Times in seconds."""

    naive_batches_s: tuple[float, ...]
    full_cold_s: float
    full_steady_s: float

    @property
    def naive_s(self) -> float:
        return sum(self.naive_batches_s) / len(self.naive_batches_s)

    @property
    def ratio(self) -> float:
        return self.full_steady_s / self.naive_s


def predict_real(config: JobConfig, naive_ledger: Path) -> PredictedReal:
    """Simulate both sides of the comparison. Raises ProcessFailed if the simulated run does not end."""
    reader = LedgerReader.open(naive_ledger)
    calibration = calibrate(observe(reader), config)
    groups = recorded_groups(reader, starts_at_once=config.sandbox.start_concurrency)
    reader.close()
    size = config.schedule.groups_per_step
    batches = [groups[start : start + size] for start in range(0, len(groups), size)]
    outcome = predict(_scenario(config, calibration, groups))
    if isinstance(outcome, Failed):
        raise ProcessFailed(f"the simulated run failed: {outcome.problem}")
    figures = outcome.figures
    assert figures.steady_s is not None, "there are more batches than the warm-up takes"
    return PredictedReal(
        naive_batches_s=tuple(_naive_s(_scenario(config, calibration, batch)) for batch in batches),
        full_cold_s=figures.cold_s,
        full_steady_s=figures.steady_s,
    )


def _scenario(config: JobConfig, calibration: Calibration, groups: list[tuple[Recorded, ...]]) -> Scenario:
    """The laws with recorded episodes in the place of drawn ones, group by group."""
    workload = msgspec.structs.replace(calibration.workload, replay=Replay(tasks=tuple(groups), shuffled=False))
    return simulated_job(config, workload, calibration.hardware, steps=config.schedule.steps).scenario


def _naive_s(scenario: Scenario) -> float:
    return simulate(run_baseline(Baseline.NAIVE, scenario), seed=scenario.config.seed).cold_s
