"""What happens to the last running members of a group that the rest of the group waits for. Pure.

carry: nothing; batches close with other groups, and the members go on. wait: a batch takes groups in launch order, so
it waits for all of them, and nothing is selected. cut: the group closes without them when they are expected to take
long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Lagging:
    """A group of which nothing is pending, and some members run."""

    num_usable: int
    ended_s: Sequence[float]
    """Active seconds of the members that have ended usable."""
    remaining_s: Sequence[float | None]
    """Expected active seconds of each that runs."""


def cut(group: Lagging, *, min_usable: int, factor: float) -> bool:
    """Whether the group closes now, without the members that run.

    It must have `min_usable` usable members, and every one that runs must be expected to take `factor` times as long as
    an ended one took on average: where one is nearly done the group waits, for then it can soon be whole.
    """
    if group.num_usable < min_usable or not group.ended_s:
        return False
    patience_s = factor * sum(group.ended_s) / len(group.ended_s)
    return all(remaining is not None and remaining > patience_s for remaining in group.remaining_s)
