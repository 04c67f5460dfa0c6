"""In which order members of open groups start, when not all can. Pure.

First those of which something is lost already: members that run again. Then groups that need the fewest further members
to be complete, because the others' work waits for them. Among equals the expected-longest first, because what starts
last should not take longest; then launch order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A member that could start."""

    group: str
    seq: int
    task: str
    member: int
    attempt: int
    num_missing: int
    """Members that its group still needs, this one and those that run included."""
    begun: bool
    """Some member of its group has started already."""


def in_order(candidates: Iterable[Candidate], *, expected: Callable[[str], float]) -> list[Candidate]:
    """`expected`: tokens that an episode of a task is expected to become."""

    def key(candidate: Candidate) -> tuple[bool, bool, int, float, int, int]:
        new = not candidate.begun
        return (
            candidate.attempt == 0,
            new,
            0 if new else candidate.num_missing,
            -expected(candidate.task),
            candidate.seq,
            candidate.member,
        )

    return sorted(candidates, key=key)
