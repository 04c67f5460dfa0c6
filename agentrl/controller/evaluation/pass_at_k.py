"""pass@k and its uncertainty. Pure: counts in, figures out; the resampling has a seed of its own.

Samples of one task are not independent of each other, so an interval is over tasks: with 4 tasks of 100 samples each we
know 4 tasks, not 400 things.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
_Z = 1.959964
"""Quantile of the normal distribution for `CONFIDENCE`, both sides."""
RESAMPLES = 4000
"""With these the ends of an interval are within 0.002 of those of any number more, at a width of 0.2."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One figure, with its interval at `CONFIDENCE`."""

    value: float
    low: float
    high: float
    num_tasks: int
    """Tasks that it is the mean of."""
    method: str
    """bootstrap or wilson."""


def pass_at_k(num_samples: int, num_passed: int, k: int) -> float:
    """Probability that at least one of k samples passes: 1 - C(n - c, k) / C(n, k), unbiased for n >= k.

    Chen et al., Evaluating Large Language Models Trained on Code (arXiv 2107.03374), equation 1.
    """
    assert 0 <= num_passed <= num_samples and 1 <= k <= num_samples
    return 1.0 - math.comb(num_samples - num_passed, k) / math.comb(num_samples, k)


def estimate(counts: Mapping[str, tuple[int, int]], k: int) -> Estimate | None:
    """pass@k over tasks, from (usable samples, passed ones) of each. Tasks with fewer than k samples are left out;
    None if that leaves none."""
    return mean([pass_at_k(samples, passed, k) for samples, passed in counts.values() if samples >= k])


def mean(scores: Sequence[float]) -> Estimate | None:
    """Mean of the tasks' scores, each in [0, 1], with a percentile interval of the bootstrap over tasks (Efron 1979;
    resampling the clusters, as Cameron, Gelbach and Miller 2008 do).

    Where all scores are equal the bootstrap's interval would have no width, and say that one task that was solved
    proves everything: there it is Wilson's (1927), with each task as one trial. None of no scores.
    """
    if not scores:
        return None
    values = np.asarray(scores)
    value = float(values.mean())
    if float(np.ptp(values)) == 0.0 or set(scores) <= {0.0, 1.0}:
        low, high = wilson(value, len(scores))
        return Estimate(value=value, low=low, high=high, num_tasks=len(scores), method="wilson")
    drawn = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(values[drawn].mean(axis=1), [tail, 1 - tail])
    return Estimate(value=value, low=float(low), high=float(high), num_tasks=len(scores), method="bootstrap")


def wilson(share: float, num_trials: int) -> tuple[float, float]:
    """Wilson's score interval of a share of independent trials (J. Am. Stat. Assoc. 22, 1927)."""
    square = _Z * _Z / num_trials
    centre = (share + square / 2) / (1 + square)
    half = _Z / (1 + square) * math.sqrt(share * (1 - share) / num_trials + square / (4 * num_trials))
    return max(centre - half, 0.0), min(centre + half, 1.0)
