"""A job's prediction over seeds: its times, where GPU time goes, what bounds it, what each mechanism is worth."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.bench.spread import Spread
from agentrl.simulation.parallel import Done, run_all
from agentrl.simulation.predict import Failed, Outcome, Predicted, at_seed, mechanisms_of, predict
from agentrl.simulation.run import Scenario


@dataclass(frozen=True, kw_only=True)
class Without:
    """The same job with one mechanism turned off."""

    name: str
    meaning: str
    step: Spread | None
    """Time of a step then; None where the run failed."""
    cost: float | None
    """How much longer a step takes then, as a share: 0.2 is 20 % longer."""
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Means and spreads over seeds. Times in seconds, of the steady state: the first three steps dropped where there
    are more."""

    seeds: int
    steps: int
    problems: tuple[str, ...]
    """Of seeds whose run failed; they are in none of the figures."""
    first_batch: Spread
    time_to_batch: Spread
    step: Spread
    run_s: float
    """The whole run of the job, first batch included."""
    lag_p95: int
    lag_max: int
    bias_turns: float
    bias_tokens: float
    prefill_per_generated: float
    busy: float
    infra_as_reward: int
    lost: int
    gpu_shares: dict[str, float]
    """Share of all GPU time by use, the largest first."""
    bounds: dict[str, float]
    """Seconds that a step takes at least, by the resource that would be the only limit."""
    without: tuple[Without, ...]

    @property
    def binding(self) -> str:
        return max(self.bounds, key=lambda name: self.bounds[name])


def forecast(
    scenario: Scenario,
    *,
    seeds: int,
    full_steps: int,
    mechanisms: bool = True,
    jobs: int | None = None,
    on_done: Done = lambda: None,
) -> Forecast | Failed:
    """Simulate a scenario on `seeds` seeds from its own on, and once more without each mechanism it uses.

    `full_steps`: steps of the whole run. Failed if no seed comes to its end.
    """
    first = scenario.config.seed
    variants = [scenario, *(mechanism.off(scenario) for mechanism in mechanisms_of(scenario) if mechanisms)]
    tasks = [at_seed(variant, seed) for variant in variants for seed in range(first, first + seeds)]
    outcomes = run_all(predict, tasks, jobs=jobs, on_done=on_done)
    runs = [run for run in outcomes[:seeds] if isinstance(run, Predicted)]
    problems = tuple(dict.fromkeys(run.problem for run in outcomes[:seeds] if isinstance(run, Failed)))
    if not runs:
        return Failed(problem=problems[0])
    step = Spread.of([run.steady_step_s for run in runs])
    others = [outcomes[start : start + seeds] for start in range(seeds, len(outcomes), seeds)]
    return Forecast(
        seeds=seeds,
        steps=scenario.config.schedule.steps,
        problems=problems,
        first_batch=Spread.of([run.time_to_batch_s[0] for run in runs]),
        time_to_batch=Spread.of([run.steady_time_to_batch_s for run in runs]),
        step=step,
        run_s=statistics.mean(_run_s(run, full_steps) for run in runs),
        lag_p95=max(run.lag_p95 for run in runs),
        lag_max=max(run.lag_max for run in runs),
        bias_turns=statistics.mean(run.figures.bias_turns for run in runs),
        bias_tokens=statistics.mean(run.figures.bias_tokens for run in runs),
        prefill_per_generated=statistics.mean(run.figures.prefill_per_generated for run in runs),
        busy=statistics.mean(run.figures.busy for run in runs),
        infra_as_reward=sum(run.figures.infra_as_reward for run in runs),
        lost=sum(run.figures.lost for run in runs),
        gpu_shares=_gpu_shares(runs),
        bounds=_bounds(runs),
        without=tuple(
            _without(mechanism.name, mechanism.without, other, step)
            for mechanism, other in zip(mechanisms_of(scenario), others, strict=False)
        ),
    )


def num_simulations(scenario: Scenario, *, seeds: int, mechanisms: bool) -> int:
    """How many `forecast` runs."""
    return seeds * (1 + (len(mechanisms_of(scenario)) if mechanisms else 0))


def as_json(forecast: Forecast) -> dict[str, Any]:
    """For machines. Spreads are standard deviations over seeds; shares are from 0 to 1."""
    return {
        "seeds": forecast.seeds,
        "steps": forecast.steps,
        "problems": list(forecast.problems),
        "first_batch_s": forecast.first_batch.mean,
        "first_batch_sd_s": forecast.first_batch.sd,
        "time_to_batch_s": forecast.time_to_batch.mean,
        "time_to_batch_sd_s": forecast.time_to_batch.sd,
        "step_s": forecast.step.mean,
        "step_sd_s": forecast.step.sd,
        "run_s": forecast.run_s,
        "lag_p95": forecast.lag_p95,
        "lag_max": forecast.lag_max,
        "bias_turns": forecast.bias_turns,
        "bias_tokens": forecast.bias_tokens,
        "prefill_per_generated": forecast.prefill_per_generated,
        "busy": forecast.busy,
        "infra_as_reward": forecast.infra_as_reward,
        "lost": forecast.lost,
        "gpu_shares": forecast.gpu_shares,
        "bounds_s": forecast.bounds,
        "bound_by": forecast.binding,
        "without": {
            one.name: {"step_s": one.step.mean if one.step else None, "cost": one.cost, "problem": one.problem}
            for one in forecast.without
        },
    }


def _run_s(run: Predicted, full_steps: int) -> float:
    """What was simulated, and the rest at the steady state's pace."""
    return sum(run.step_s) + (full_steps - len(run.step_s)) * run.steady_step_s


def _gpu_shares(runs: Sequence[Predicted]) -> dict[str, float]:
    total = sum(sum(run.gpu_s.values()) for run in runs)
    spent: Counter[str] = Counter()
    for run in runs:
        spent.update(run.gpu_s)
    return {use: seconds / total for use, seconds in spent.most_common()}


def _bounds(runs: Sequence[Predicted]) -> dict[str, float]:
    each = [run.bound.by_resource() for run in runs]
    return {name: statistics.mean(one[name] for one in each) for name in each[0]}


def _without(name: str, meaning: str, outcomes: Sequence[Outcome], step: Spread) -> Without:
    runs = [outcome for outcome in outcomes if isinstance(outcome, Predicted)]
    problem = next((outcome.problem for outcome in outcomes if isinstance(outcome, Failed)), "")
    if not runs:
        return Without(name=name, meaning=meaning, step=None, cost=None, problem=problem)
    slower = Spread.of([run.steady_step_s for run in runs])
    return Without(name=name, meaning=meaning, step=slower, cost=slower.mean / step.mean - 1, problem=problem)
