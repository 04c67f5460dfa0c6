"""Which episodes will be started next, so that their sandboxes can be up by then. Pure.

No guess: the order of tasks is fixed by the seed, so what comes after the open groups is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice


@dataclass(frozen=True, kw_only=True)
class Upcoming:
    """In the order of launches."""

    tasks: tuple[tuple[str, int], ...]
    """Name of a task, and how many of its episodes."""
    due: int
    """Of all these, how many start at once when launching goes on: when engines serve, or the next batch is taken."""


def upcoming(
    pending: Iterable[tuple[str, int]],
    following: Iterator[str],
    *,
    num_openable: int,
    group_size: int,
    slots: int,
    horizon: int,
) -> Upcoming:
    """What comes.

    `pending`: tasks of open groups with members to be launched. `following`: tasks of the groups after those, of which
    `num_openable` may be opened until the next batch has been taken. `slots`: episodes that may act beside those that
    do. `horizon`: no more episodes than this are looked for.
    """
    tasks = list(pending)
    count = sum(members for _, members in tasks)
    groups = min(max(num_openable, 0), -(-max(horizon - count, 0) // group_size))
    tasks += [(task, group_size) for task in islice(following, groups)]
    count += groups * group_size
    return Upcoming(tasks=tuple(tasks), due=min(slots, count))
