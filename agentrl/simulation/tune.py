"""A search in simulation for how a job should share its GPUs, and how much of it should be in flight at once.

Successive halving: many candidates on one seed, the better third on more seeds, and again; the same seeds for all, so
that a difference is not luck. Candidates are a seeded sample of a grid; the job's own settings are always one of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from random import Random
from typing import Any

from agentrl.config.schema import JobConfig
from agentrl.simulation.predict import Failed, Outcome, Predicted

ROUNDS = (1, 2, 4)
"""New seeds in each round of the search; each keeps a third of the candidates of the one before."""
_KEPT = 3
_WINDOWS = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
"""Groups open at once, in batches."""
_LIVE = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
"""Live episodes, in batches."""
_SPARE_SANDBOXES = (1.0, 1.25)
"""Sandboxes for each live episode."""

Settings = tuple[tuple[str, Any], ...]
"""(key, value) of settings, as overrides name them."""


@dataclass(kw_only=True)
class Candidate:
    """Settings on trial."""

    settings: Settings
    outcomes: list[Outcome] = field(default_factory=list)
    """By seed, from the job's own seed on."""

    @property
    def runs(self) -> list[Predicted]:
        return [outcome for outcome in self.outcomes if isinstance(outcome, Predicted)]

    @property
    def problem(self) -> str | None:
        """Why a simulated run of it failed, if one did."""
        return next((outcome.problem for outcome in self.outcomes if isinstance(outcome, Failed)), None)

    @property
    def bias(self) -> float:
        return statistics.mean(run.figures.bias_turns for run in self.runs)

    @property
    def step_s(self) -> float:
        return statistics.mean(run.steady_step_s for run in self.runs)

    @property
    def overrides(self) -> list[str]:
        return [f"{key}={value}" for key, value in self.settings]


Run = Callable[[Sequence[tuple[Settings, int]]], Sequence[Outcome]]
"""Simulates settings on the n-th seed, all of them."""


def search(candidates: Sequence[Settings], *, run: Run, max_bias: float) -> list[Candidate]:
    """All candidates, the best first: those that went furthest, then by `rank`.

    The first candidate, the job's own settings, stays to the end to be compared with.
    """
    alive = [Candidate(settings=settings) for settings in candidates]
    own, out = alive[0], list[Candidate]()
    num_seeds = 0
    for new_seeds in ROUNDS:
        tasks = [(candidate, seed) for candidate in alive for seed in range(num_seeds, num_seeds + new_seeds)]
        outcomes = run([(candidate.settings, seed) for candidate, seed in tasks])
        for (candidate, _), outcome in zip(tasks, outcomes, strict=True):
            candidate.outcomes.append(outcome)
        num_seeds += new_seeds
        alive.sort(key=lambda candidate: rank(candidate, max_bias))
        if new_seeds != ROUNDS[-1]:
            kept = alive[: math.ceil(len(alive) / _KEPT)]
            out = [candidate for candidate in alive if candidate not in kept and candidate is not own] + out
            alive = kept if own in kept else [*kept, own]
    return [*alive, *out]


def rank(candidate: Candidate, max_bias: float) -> tuple[bool, bool, float]:
    """Sort key: runs that end before those that fail, fair ones before biased ones, then short steps first.

    A step counts by what it trains: a batch that closed with fewer episodes is no faster for it.
    """
    if candidate.problem is not None or not candidate.runs:
        return True, True, math.inf
    per_episode = statistics.mean(run.steady_step_s / max(run.trained_per_step, 1e-9) for run in candidate.runs)
    return False, abs(candidate.bias) > max_bias, per_episode


def num_candidates(budget: int) -> int:
    """How many candidates a search within `budget` simulations can begin with; at least 2."""
    count = 2
    while num_simulations(count + 1) <= budget:
        count += 1
    return count


def num_simulations(count: int) -> int:
    """Simulations of a search that begins with `count` candidates, at most."""
    total = 0
    for new_seeds in ROUNDS:
        total += count * new_seeds
        count = math.ceil(count / _KEPT) + 1
    return total


def grid(config: JobConfig) -> list[Settings]:
    """Every combination worth a thought, the job's own settings first. GPUs are as many as the job has."""
    own = settings_of(config)
    episodes = config.schedule.groups_per_step * config.algorithm.group_size
    found = {own: None}
    for layout, window, live, spare in product(_layouts(config), _WINDOWS, _LIVE, _SPARE_SANDBOXES):
        num_live = max(math.ceil(live * episodes), 1)
        settings = (
            *layout,
            ("schedule.window_groups", math.ceil(window * config.schedule.groups_per_step)),
            ("schedule.max_live_episodes", num_live),
            ("sandbox.max_sandboxes", math.ceil(num_live * spare)),
        )
        found[settings] = None
    return list(found)


def sample(settings: Sequence[Settings], count: int, *, seed: int) -> list[Settings]:
    """The first and `count` - 1 others, drawn by `seed`."""
    others = list(settings[1:])
    Random(f"tune/{seed}").shuffle(others)
    return [settings[0], *others[: count - 1]]


def settings_of(config: JobConfig) -> Settings:
    """What the search would have to say to get this configuration."""
    return (
        ("inference.num_engines", config.inference.num_engines),
        ("schedule.swing", config.schedule.swing),
        ("trainer.world_size", config.trainer.world_size),
        ("schedule.window_groups", config.schedule.window_groups),
        ("schedule.max_live_episodes", config.schedule.max_live_episodes),
        ("sandbox.max_sandboxes", config.sandbox.max_sandboxes),
    )


def with_settings(config: JobConfig, settings: Settings) -> JobConfig:
    """The configuration with these settings."""
    for key, value in settings:
        section, _, name = key.partition(".")
        config = replace(config, **{section: replace(getattr(config, section), **{name: value})})
    return config


def _layouts(config: JobConfig) -> Iterator[Settings]:
    """Ways to share the job's GPUs: all take turns, some swing, or some only train."""
    swing, engines = config.schedule.swing, config.inference.num_engines
    gpus = engines + (config.trainer.world_size if swing == "none" else 0)
    ranks = config.trainer.world_size

    def layout(num_engines: int, swing: str, world_size: int) -> Settings:
        return (
            ("inference.num_engines", num_engines),
            ("schedule.swing", swing),
            ("trainer.world_size", world_size),
        )

    yield layout(gpus, "all", ranks)
    for count in range(1, gpus):
        yield layout(gpus, str(count), ranks)
        yield layout(gpus - count, "none", count)
