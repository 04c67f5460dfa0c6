"""What a warm pool came to, as figures."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace

_RECENT = 4096
"""Acquisitions that quantiles are taken over."""


@dataclass(kw_only=True)
class Counts:
    """Since the pool was made."""

    hits: int = 0
    """Requests served by a sandbox that was up already."""
    misses: int = 0
    """Requests that waited for a start."""
    started: int = 0
    """Sandboxes that came up."""
    failed: int = 0
    """Starts that failed."""
    dead: int = 0
    """Sandboxes that did not answer when they were handed out, and were replaced."""
    hedged: int = 0
    """Starts that became overdue: others are made in their place."""
    abandoned: int = 0
    """Overdue starts that were given up."""
    unused: int = 0
    """Sandboxes that were closed, or died, without having served."""


@dataclass(frozen=True, kw_only=True)
class PoolFigures:
    """Counts, and what they say."""

    counts: Counts
    acquire_p50_s: float | None
    """From asking to having, of the last 4,096 requests; None before the first."""
    acquire_p95_s: float | None
    warm: int
    """Up and nobody's, now."""

    @property
    def hit_rate(self) -> float | None:
        """Share of requests that found one; None before the first."""
        asked = self.counts.hits + self.counts.misses
        return self.counts.hits / asked if asked else None

    @property
    def waste(self) -> float | None:
        """Share of started sandboxes that never served; None before the first."""
        return self.counts.unused / self.counts.started if self.counts.started else None


class Acquisitions:
    """How long requests took."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_RECENT)

    def add(self, seconds: float) -> None:
        self._recent.append(seconds)

    def figures(self, counts: Counts, *, warm: int) -> PoolFigures:
        ordered = sorted(self._recent)
        return PoolFigures(
            counts=replace(counts),
            acquire_p50_s=_quantile(ordered, 0.5),
            acquire_p95_s=_quantile(ordered, 0.95),
            warm=warm,
        )


def _quantile(ordered: list[float], share: float) -> float | None:
    return ordered[max(math.ceil(len(ordered) * share) - 1, 0)] if ordered else None
