"""A figure over seeds: its mean and how far seeds lie apart."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation."""

    mean: float
    sd: float | None
    """None for a single seed, which has none."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """At least one value."""
        return cls(statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None)

    def __str__(self) -> str:
        digits = 0 if self.mean >= 100 else 1
        return f"{self.mean:.{digits}f}" + ("" if self.sd is None else f" ({self.sd:.{digits}f})")


def cut(value: Spread | None, baseline: Spread | None) -> float | None:
    """Share of the baseline's time that is saved; None where either is not known."""
    return None if value is None or baseline is None else 1 - value.mean / baseline.mean


def percent(share: float | None, *, digits: int = 0) -> str:
    """`54 %`, or a dash."""
    return "-" if share is None else f"{100 * share:.{digits}f} %"
