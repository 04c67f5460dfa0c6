"""What a warm pool measures: how often sandboxes are asked for, how long a start takes, and which kinds fail. Pure."""

from __future__ import annotations

import math
from collections import deque

from agentrl.sandbox.warm_plan import Kind

_RATE_MEMORY_S = 120.0
"""Time over which the launch rate is averaged: several starts of a slow cluster, few steps of a fast run."""
_RECENT_STARTS = 64
_MIN_STARTS = 8
"""Starts that must have been seen before one counts as slow."""
_LEAD_SHARE = 0.9
"""Share of starts that are up within the lead. Above it lie those that hang."""
_PATIENCE = 1.5
"""A start is overdue after so many leads: where 3 % hang, 2 to 4 % of the others are then started twice."""
_MIN_PATIENCE_S = 5.0
"""No start is overdue sooner: one of milliseconds takes seconds on a busy machine, and not because it hangs. To give it
up for another only costs more of the CPU that it waits for."""
_BACKOFF_S, _BACKOFF_MAX_S = 0.5, 60.0


class LaunchRate:
    """Sandboxes asked for per second, as an exponentially weighted mean."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._at = 0.0
        self._count = 0.0

    def add(self, now: float) -> None:
        """One was asked for."""
        if self._began is None:
            self._began = self._at = now
        self._count = self._decayed(now) + 1.0
        self._at = now

    def per_s(self, now: float) -> float:
        """0 before the first. While less time has passed than it is averaged over, over the time that has passed."""
        if self._began is None:
            return 0.0
        seen_s = max(now - self._began, 1.0)
        return self._decayed(now) / (_RATE_MEMORY_S * (1 - math.exp(-seen_s / _RATE_MEMORY_S)))

    def _decayed(self, now: float) -> float:
        return self._count * math.exp((self._at - now) / _RATE_MEMORY_S)


class StartTimes:
    """How long the last starts took."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_RECENT_STARTS)

    def add(self, seconds: float) -> None:
        self._recent.append(seconds)

    @property
    def lead_s(self) -> float:
        """Time within which nearly all are up; 0 before the first."""
        if not self._recent:
            return 0.0
        ordered = sorted(self._recent)
        return ordered[max(math.ceil(len(ordered) * _LEAD_SHARE) - 1, 0)]

    def patience_s(self, abandoned: int) -> float:
        """After which a start is overdue. It doubles with each one of its kind that was given up: a kind that is slower
        than the others is let to its end."""
        if len(self._recent) < _MIN_STARTS:
            return math.inf
        return float(max(_PATIENCE * self.lead_s, _MIN_PATIENCE_S) * 2 ** min(abandoned, 16))


def level(rate_per_s: float, lead_s: float, due: int) -> int:
    """Sandboxes that must be up or coming so that hardly any is waited for: what will be asked for at once, and what is
    asked for while one starts (Little's law) with two deviations of it, were it a Poisson stream."""
    asked = rate_per_s * lead_s
    return due + math.ceil(asked + 2 * math.sqrt(asked))


def backoff_s(failures: int, jitter: float) -> float:
    """Seconds from the last of so many failures in a row to the next try. `jitter`, from 0 to 1, spreads tries."""
    return float(min(_BACKOFF_S * 2 ** min(failures - 1, 16), _BACKOFF_MAX_S) * (0.5 + jitter / 2))


class Failures:
    """Starts that failed, by kind, since the last that did not."""

    def __init__(self) -> None:
        self._counts: dict[Kind, int] = {}
        self._ready_at: dict[Kind, float] = {}

    def add(self, kind: Kind, now: float, jitter: float) -> int:
        """One more. Returns how many in a row that makes."""
        self._counts[kind] = self._counts.get(kind, 0) + 1
        self._ready_at[kind] = now + backoff_s(self._counts[kind], jitter)
        return self._counts[kind]

    def forget(self, kind: Kind) -> None:
        """A start succeeded."""
        self._counts.pop(kind, None)
        self._ready_at.pop(kind, None)

    def ready_at(self, kind: Kind) -> float:
        """When it may be tried again; in the past if it did not fail."""
        return self._ready_at.get(kind, -math.inf)
