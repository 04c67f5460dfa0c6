"""Laws from measurements: how a law is chosen for numbers, and how well it then fits them. Pure."""

from __future__ import annotations

import itertools
import math
import statistics
from bisect import bisect_right
from collections.abc import Sequence
from random import Random

import numpy as np
import numpy.typing as npt

from agentrl.simulation.laws import AnyLaw, Beta, Constant, Quantiles

Matrix = npt.NDArray[np.float64]

_TAIL_SHARES = (0.98, 0.99, 0.995, 0.998)
"""Finer at the top, where heavy tails are."""
_KS_DRAWS = 4000


def quantiles(values: Sequence[float], *, intervals: int = 20) -> Quantiles:
    """The values' quantiles at evenly spaced shares, and finer ones above 0.95 as far as there are values."""
    ordered = sorted(values)
    shares = {index / intervals for index in range(intervals + 1)}
    shares |= {share for share in _TAIL_SHARES if (1 - share) * len(ordered) >= 1}
    return Quantiles(shares=tuple(sorted(shares)), values=tuple(_quantile(ordered, share) for share in sorted(shares)))


def fit_law(values: Sequence[float], *, default: float = 0.0) -> Constant | Quantiles:
    """A law for measured numbers: their quantiles, or a constant where they are all equal, few, or none."""
    if len(values) < 3 or min(values) == max(values):
        return Constant(value=statistics.median(values) if values else default)
    return quantiles(values, intervals=min(20, len(values) - 1))


def fit_turns(values: Sequence[int]) -> Quantiles:
    """As `fit_law`, for counts of turns: also a single one has quantiles."""
    return quantiles(values or [1], intervals=20)


def ks_distance(law: AnyLaw, values: Sequence[float]) -> float:
    """Largest difference between the shares at or below any x, of the values and of draws from the law: 0 to 1."""
    random = Random(0)
    drawn = sorted(law.sample(random) for _ in range(_KS_DRAWS))
    ordered = sorted(values)
    return max(
        abs(bisect_right(drawn, x) / len(drawn) - bisect_right(ordered, x) / len(ordered))
        for x in itertools.chain(drawn, ordered)
    )


def group_share(groups: Sequence[Sequence[float]]) -> float:
    """Share of the log-variance that members of a group have in common: 1 - within / total, in [0, 1]."""
    logs = [[math.log(max(value, 1e-9)) for value in group] for group in groups if len(group) > 1]
    pooled = [value for group in logs for value in group]
    if len(logs) < 2 or statistics.pvariance(pooled) == 0:
        return 0.0
    within = statistics.mean(statistics.variance(group) for group in logs)
    return min(max(1 - within / statistics.variance(pooled), 0.0), 1.0)


def fit_success(groups: Sequence[Sequence[float]]) -> Beta | Constant:
    """Law of a task's probability of success from the rewards of its episodes: Beta by the method of moments.

    The spread of shares counted over few episodes is wider than that of the probabilities; that part is taken out.
    A constant where no spread is left.
    """
    shares = [statistics.mean(group) for group in groups if group]
    if not shares:
        return Constant(value=0.5)
    mean = min(max(statistics.mean(shares), 0.0), 1.0)
    size = statistics.mean(len(group) for group in groups if group)
    spread = statistics.pvariance(shares)
    variance = (spread - mean * (1 - mean) / size) / (1 - 1 / size) if size > 1 else spread
    if variance <= 1e-6 or variance >= mean * (1 - mean):
        return Constant(value=mean)
    total = mean * (1 - mean) / variance - 1
    return Beta(a=mean * total, b=(1 - mean) * total)


def service_times(asked: Sequence[float], served: Sequence[float], *, at_once: int) -> list[float]:
    """How long each of several jobs took once it had its turn, `at_once` at a time, the first asked first served.

    `asked` and `served` are times by job, in the order in which they asked: what a job waited for a slot is left out.
    """
    times: list[float] = []
    for index, (begin, end) in enumerate(zip(asked, served, strict=True)):
        earlier = sorted(served[:index][-256:], reverse=True)
        free = earlier[at_once - 1] if len(earlier) >= at_once else -math.inf
        times.append(max(end - max(begin, free), 0.0))
    return times


def least_squares(columns: Matrix, values: Matrix) -> Matrix:
    """Coefficients of at least 0 that bring `columns` (N, K) closest to `values` (N,); K is small.

    Every choice of columns is tried: the best one whose coefficients are all positive is the solution.
    """
    count = columns.shape[1]
    best, best_error = np.zeros(count), float((values**2).sum())
    for chosen in itertools.chain.from_iterable(itertools.combinations(range(count), k) for k in range(1, count + 1)):
        part, *_ = np.linalg.lstsq(columns[:, chosen], values, rcond=None)
        error = float(((columns[:, chosen] @ part - values) ** 2).sum())
        if (part > 0).all() and error < best_error * (1 - 1e-9):
            best, best_error = np.zeros(count), error
            best[list(chosen)] = part
    return best


def overlapping(begins: Sequence[float], ends: Sequence[float]) -> list[float]:
    """By interval: how many intervals, itself included, are open on average while it is."""
    starts, stops = np.sort(np.asarray(begins)), np.sort(np.asarray(ends))

    def open_seconds_until(when: Matrix) -> Matrix:
        """Sum over all intervals of what lies before `when`."""
        return _seconds_since(starts, when) - _seconds_since(stops, when)

    begin, end = np.asarray(begins), np.asarray(ends)
    spans = np.maximum(end - begin, 1e-9)
    mean: list[float] = ((open_seconds_until(end) - open_seconds_until(begin)) / spans).tolist()
    return mean


def _seconds_since(events: Matrix, when: Matrix) -> Matrix:
    """Sum over the events before `when` of the seconds since then; `events` ascend."""
    sums = np.concatenate([[0.0], np.cumsum(events)])
    count = np.searchsorted(events, when, side="right")
    result: Matrix = count * when - sums[count]
    return result


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    index = min(int(place), len(ordered) - 2) if len(ordered) > 1 else 0
    if len(ordered) == 1:
        return float(ordered[0])
    return float(ordered[index] + (ordered[index + 1] - ordered[index]) * (place - index))
