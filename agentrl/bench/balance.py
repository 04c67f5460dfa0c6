"""Training counted: fixed splits of GPUs between generation and training against the balance, steady and drifting.

Every fixed split gives so many GPUs to engines and the rest to the trainer; the balance lends swing engines to it by
its own decision. All of them meet the same episodes, on equal seeds.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from agentrl.bench.spread import Spread
from agentrl.simulation.balance_policies import BalanceFigures, measure_balance, scaled, splits
from agentrl.simulation.config import Hardware, Workload
from agentrl.simulation.parallel import Done, run_all

DRIFT = 3.0
"""Factor by which episodes grow over the drifting run."""


@dataclass(frozen=True, kw_only=True)
class Balanced:
    """One mode over all seeds: means."""

    step: Spread
    gpu_share: dict[str, float]
    lag_mean: float


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The balance against the fixed splits. Shares: 0.1 is 10 % longer steps of the balance."""

    best_split: str
    median_split_s: float
    """Median over all splits of their step time."""
    balance: str
    over_best: float
    over_median: float
    beats_every_split: bool


@dataclass(frozen=True, kw_only=True)
class _Task:
    mode: str
    workload: Workload
    hardware: Hardware
    seed: int
    steps: int


def modes(hardware: Hardware, swing: Sequence[int]) -> list[str]:
    """Every fixed split, and a balance with so many swing engines each."""
    return [*splits(hardware), *(f"balance_{count}" for count in swing)]


def drifting(workload: Workload, *, steps: int) -> Workload:
    """Turns grow by DRIFT, evenly over the groups of all steps."""
    return msgspec.structs.replace(workload, turns_growth=DRIFT, turns_growth_groups=workload.groups * steps)


def balance(
    chosen: Sequence[str],
    workload: Workload,
    hardware: Hardware,
    *,
    scale: int,
    seeds: int,
    steps: int,
    jobs: int | None = None,
    on_done: Done = lambda: None,
) -> dict[str, Balanced]:
    """Measure modes on a workload, at 1 / `scale` of its size."""
    smaller, machine = scaled(workload, hardware, by=scale)
    tasks = [
        _Task(mode=mode, workload=smaller, hardware=machine, seed=seed, steps=steps)
        for mode in chosen
        for seed in range(seeds)
    ]
    figures = run_all(_measure, tasks, jobs=jobs, on_done=on_done)
    by_mode: dict[str, list[BalanceFigures]] = {}
    for one in figures:
        by_mode.setdefault(one.mode, []).append(one)
    return {mode: _summarise(runs) for mode, runs in by_mode.items()}


def judge(results: Mapping[str, Balanced]) -> Verdict | None:
    """The best balance against the splits; None where one of them was not run."""
    steps = {mode: result.step.mean for mode, result in results.items()}
    fixed = {mode: step for mode, step in steps.items() if mode.startswith("split_")}
    balances = {mode: step for mode, step in steps.items() if mode not in fixed}
    if not fixed or not balances:
        return None
    best, ours = min(fixed, key=lambda mode: fixed[mode]), min(balances, key=lambda mode: balances[mode])
    median = statistics.median(fixed.values())
    return Verdict(
        best_split=best,
        median_split_s=median,
        balance=ours,
        over_best=balances[ours] / fixed[best] - 1,
        over_median=balances[ours] / median - 1,
        beats_every_split=balances[ours] < fixed[best],
    )


def as_json(results: Mapping[str, Balanced]) -> dict[str, Any]:
    """For machines."""
    verdict = judge(results)
    return {
        "modes": {
            mode: {
                "step_s": result.step.mean,
                "step_sd_s": result.step.sd,
                "lag_mean": result.lag_mean,
                "gpu_share": result.gpu_share,
            }
            for mode, result in results.items()
        },
        "verdict": None if verdict is None else msgspec.to_builtins(verdict),
    }


def _measure(task: _Task) -> BalanceFigures:
    return measure_balance(task.mode, task.workload, task.hardware, seed=task.seed, steps=task.steps)


def _summarise(runs: Sequence[BalanceFigures]) -> Balanced:
    uses = sorted({use for run in runs for use in run.gpu_share})
    return Balanced(
        step=Spread.of([run.step_s for run in runs]),
        gpu_share={use: statistics.mean(run.gpu_share.get(use, 0.0) for run in runs) for use in uses},
        lag_mean=statistics.mean(run.lag_mean for run in runs),
    )
