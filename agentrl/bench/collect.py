"""Time to a trainable batch: policies against their baselines in virtual time, on equal seeds and so equal episodes.

Cold is from nothing running to the first complete batch; steady is the mean time between complete batches with
carry-over, the first three dropped. They are never mixed: a policy's steady interval is compared with what the
baselines, which carry nothing over, take for every batch.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.bench.spread import Spread, cut
from agentrl.simulation.config import Hardware, Workload
from agentrl.simulation.figures import Figures
from agentrl.simulation.parallel import Done, run_all
from agentrl.simulation.policies import Policy, measure

DEFAULT_POLICIES = (Policy.NAIVE, Policy.BARRIER, Policy.KEEP_ALL, Policy.OVER, Policy.FULL)
"""Those that every report holds; the others are single mechanisms."""


@dataclass(frozen=True, kw_only=True)
class Collected:
    """One policy over all seeds: means, and worst cases where those matter. Times in seconds, shares from 0 to 1."""

    cold: Spread
    steady: Spread | None
    bound: Spread
    """What no policy could beat on the same draws: of the steady interval if there is one, else the cold batch."""
    bound_ratio: float
    bias_turns: float
    bias_tokens: float
    span_median: float
    span_p95: int
    """Largest of any seed, as are `span_max` and the sums below."""
    span_max: int
    prefill_per_generated: float
    busy: float
    retractions: int
    infra_as_reward: int
    lost: int

    @property
    def headline(self) -> Spread:
        return self.steady or self.cold


@dataclass(frozen=True, kw_only=True)
class Task:
    """One simulation."""

    policy: Policy
    workload: Workload
    hardware: Hardware
    seed: int


def collect(
    policies: Sequence[Policy],
    workload: Workload,
    hardware: Hardware,
    *,
    seeds: int,
    jobs: int | None = None,
    on_done: Done = lambda: None,
) -> dict[str, Collected]:
    """Run every policy on seeds 0 to `seeds` - 1, `jobs` simulations at once (one a core)."""
    tasks = [
        Task(policy=policy, workload=workload, hardware=hardware, seed=seed)
        for policy in policies
        for seed in range(seeds)
    ]
    figures = run_all(_measure, tasks, jobs=jobs, on_done=on_done)
    by_policy: dict[str, list[Figures]] = {}
    for task, one in zip(tasks, figures, strict=True):
        by_policy.setdefault(task.policy.value, []).append(one)
    return {name: summarise(runs) for name, runs in by_policy.items()}


def _measure(task: Task) -> Figures:
    return measure(task.policy, task.workload, task.hardware, seed=task.seed)


def summarise(runs: Sequence[Figures]) -> Collected:
    """One policy's figures, a run per seed, as one."""
    steady = [run.steady_s for run in runs if run.steady_s is not None]
    headlines = [run.cold_s if run.steady_s is None else run.steady_s for run in runs]
    return Collected(
        cold=Spread.of([run.cold_s for run in runs]),
        steady=Spread.of(steady) if steady else None,
        bound=Spread.of([run.bound_s for run in runs]),
        bound_ratio=statistics.mean(took / run.bound_s for took, run in zip(headlines, runs, strict=True)),
        bias_turns=statistics.mean(run.bias_turns for run in runs),
        bias_tokens=statistics.mean(run.bias_tokens for run in runs),
        span_median=statistics.median(run.span_median for run in runs),
        span_p95=max(run.span_p95 for run in runs),
        span_max=max(run.span_max for run in runs),
        prefill_per_generated=statistics.mean(run.prefill_per_generated for run in runs),
        busy=statistics.mean(run.busy for run in runs),
        retractions=sum(run.retractions for run in runs),
        infra_as_reward=sum(run.infra_as_reward for run in runs),
        lost=sum(run.lost for run in runs),
    )


def cuts(results: Mapping[str, Collected]) -> dict[str, dict[str, float | None]]:
    """By policy, what its times save against those of the baselines; None where a baseline was not run."""
    baselines = {name: results[name].cold if name in results else None for name in ("naive", "barrier")}
    return {
        name: {
            f"cut_{kind}_vs_{baseline}": cut(value, against)
            for kind, value in (("cold", result.cold), ("steady", result.steady))
            for baseline, against in baselines.items()
        }
        for name, result in results.items()
    }


def as_json(results: Mapping[str, Collected], *, workload: str, hardware: str, seeds: int) -> dict[str, Any]:
    """For machines; a figure that there is none of is null. Spreads are standard deviations over seeds."""
    saved = cuts(results)
    return {
        "workload": workload,
        "hardware": hardware,
        "seeds": seeds,
        "policies": {name: _policy_json(result) | saved[name] for name, result in results.items()},
    }


def _policy_json(result: Collected) -> dict[str, Any]:
    return {
        "cold_s": result.cold.mean,
        "cold_sd_s": result.cold.sd,
        "steady_s": result.steady.mean if result.steady else None,
        "steady_sd_s": result.steady.sd if result.steady else None,
        "bound_s": result.bound.mean,
        "bound_ratio": result.bound_ratio,
        "bias_turns": result.bias_turns,
        "bias_tokens": result.bias_tokens,
        "span_median": result.span_median,
        "span_p95": result.span_p95,
        "span_max": result.span_max,
        "prefill_per_generated": result.prefill_per_generated,
        "busy": result.busy,
        "retractions": result.retractions,
        "infra_as_reward": result.infra_as_reward,
        "lost": result.lost,
    }
