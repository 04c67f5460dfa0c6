"""A real run beside its simulation: what the fitted laws predict for it, and what it did."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from agentrl.ledger.reader import LedgerReader
from agentrl.simulation.figures import WARM_UP_BATCHES
from agentrl.simulation.predict import Predicted


@dataclass(frozen=True)
class Compared:
    """One figure of both; seconds, tokens or turns, as its name says."""

    name: str
    real: float
    predicted: float

    @property
    def difference(self) -> float:
        """Of the prediction, as a share of what was: 0.1 is 10 % too much."""
        return self.predicted / self.real - 1 if self.real else 0.0


@dataclass(frozen=True, kw_only=True)
class RealSteps:
    """Times of a real run's steps, in seconds, the first three left out where there are more."""

    time_to_batch_s: tuple[float, ...]
    step_s: tuple[float, ...]
    """From publication to publication."""


def real_steps(reader: LedgerReader) -> RealSteps:
    """Of the steps that were published."""
    steps = [step for step in reader.steps() if step.published_at is not None]
    published = [step.published_at for step in steps if step.published_at is not None]
    skip = WARM_UP_BATCHES if len(steps) > WARM_UP_BATCHES + 1 else 0
    return RealSteps(
        time_to_batch_s=tuple(step.time_to_batch_s for step in steps[skip:]),
        step_s=tuple(end - begin for begin, end in pairwise(published))[max(skip - 1, 0) :],
    )


def compare(real: RealSteps, runs: Sequence[Predicted]) -> tuple[Compared, ...]:
    """Figure by figure; empty where the run finished too few steps. `runs`: one per seed."""
    if not real.step_s or not runs:
        return ()
    times = [seconds for run in runs for seconds in run.time_to_batch_s[run.later]]
    steps = [seconds for run in runs for seconds in run.step_s[run.later]]
    shown: tuple[tuple[str, Sequence[float], Sequence[float], Callable[[Sequence[float]], float]], ...] = (
        ("time to batch, mean s", real.time_to_batch_s, times, statistics.mean),
        ("time to batch, p50 s", real.time_to_batch_s, times, statistics.median),
        ("time to batch, p95 s", real.time_to_batch_s, times, lambda values: float(np.quantile(values, 0.95))),
        ("step, mean s", real.step_s, steps, statistics.mean),
    )
    return tuple(Compared(name, of(measured), of(predicted)) for name, measured, predicted, of in shown)
