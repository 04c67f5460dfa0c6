"""How much longer an episode will become, from how long others became. Pure.

Lengths are whatever only grows while an episode acts; here, tokens of context. What is learned is a hazard by length:
of the episodes that were that long, how many ended per token that they grew. Episodes still running count for the
length that they have reached: otherwise a start, when short ones have ended and long ones run, would look short.
Each task has a frailty, the ratio of its ends to those that the hazard led to expect (the gamma frailty model of
survival analysis): a task whose episodes run long is expected to go on doing so, one never seen is average.
"""

from __future__ import annotations

import math

BANDS = 16
"""Parts of the longest possible length with a hazard of their own."""
PRIOR_SHARE = 1 / 6
"""Mean length in shares of the longest possible one while nothing has ended. The longest one itself would let only a
sixth of the reference workload's episodes start."""
PRIOR_ENDS = 2.0
"""Weight of the prior in each band, in ended episodes."""
TASK_ENDS = 4.0
"""Weight of the average in a task's frailty: mean lengths of tasks then vary by 0.6 of their mean, as those of the
reference workload do."""


class Forecast:
    """Learns from `grow` and `end`; answers `remaining`. Lengths in tokens, at most `longest`."""

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._width = longest / BANDS
        self._prior_mean = longest * PRIOR_SHARE
        self._grown = [0.0] * BANDS
        self._ends = [0] * BANDS
        self._task_ends: dict[str, int] = {}
        self._task_expected: dict[str, float] = {}
        self._means: list[float] | None = None

    def grow(self, task: str, before: float, after: float) -> None:
        """An episode of a task went on from one length to another."""
        expected = 0.0
        for band, part in self._parts(before, after):
            expected += part * self._hazard(band)
            self._grown[band] += part
        self._task_expected[task] = self._task_expected.get(task, 0.0) + expected
        self._means = None

    def end(self, task: str, length: float) -> None:
        """An episode ended by itself. One that was lost or cancelled did not: do not tell."""
        self._ends[self._band(length)] += 1
        self._task_ends[task] = self._task_ends.get(task, 0) + 1
        self._means = None

    def remaining(self, task: str, length: float) -> float:
        """Expected growth of an episode that is `length` long, in tokens."""
        if length >= self._longest:
            return 0.0
        if self._means is None:
            self._means = self._mean_at_bounds()
        band = self._band(length)
        left = (band + 1) * self._width - length
        mean = _over_band(self._hazard(band), left, self._means[band + 1])
        return min(mean / self._frailty(task), self._longest - length)

    def _frailty(self, task: str) -> float:
        ends, expected = self._task_ends.get(task, 0), self._task_expected.get(task, 0.0)
        return (TASK_ENDS + ends) / (TASK_ENDS + expected)

    def _hazard(self, band: int) -> float:
        return (PRIOR_ENDS + self._ends[band]) / (PRIOR_ENDS * self._prior_mean + self._grown[band])

    def _mean_at_bounds(self) -> list[float]:
        """Mean growth of an episode that has reached the lower bound of each band, and of one that can grow no more."""
        means = [0.0] * (BANDS + 1)
        for band in reversed(range(BANDS)):
            means[band] = _over_band(self._hazard(band), self._width, means[band + 1])
        return means

    def _band(self, length: float) -> int:
        return min(int(length / self._width), BANDS - 1)

    def _parts(self, before: float, after: float) -> list[tuple[int, float]]:
        """(band, growth within it) of a growth."""
        parts = []
        for band in range(self._band(before), self._band(after) + 1):
            low = max(before, band * self._width)
            high = after if band == BANDS - 1 else min(after, (band + 1) * self._width)
            if high > low:
                parts.append((band, high - low))
        return parts


def _over_band(hazard: float, left: float, beyond: float) -> float:
    """Mean growth at constant hazard over `left`, and of `beyond` for those that get that far."""
    survives = math.exp(-hazard * left)
    return (1 - survives) / hazard + survives * beyond
