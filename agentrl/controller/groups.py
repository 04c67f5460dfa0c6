"""Open groups and what each of their members still needs. A state machine without clocks, tasks or clients.

Invariant: every member of an open group is pending, running, or ended with a verdict that stands; every group closes
exactly once, as ready or as dropped with a reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from agentrl.rollout.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class MemberOutcome:
    """How one attempt ended, as far as its group cares."""

    verdict: Verdict
    reward: float | None = None
    oldest_version: int | None = None
    num_turns: int = 0
    num_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Start this attempt."""

    group: str
    seq: int
    task: str
    member: int
    attempt: int


@dataclass(frozen=True, kw_only=True)
class ClosedGroup:
    """A group that left the book: ready if `reason` is None, else dropped for it."""

    group: str
    seq: int
    task: str
    outcomes: tuple[MemberOutcome, ...]
    """Of the members with a usable verdict."""
    reason: str | None = None

    @property
    def rewards(self) -> tuple[float, ...]:
        return tuple(o.reward for o in self.outcomes if o.reward is not None)

    @property
    def oldest_version(self) -> int:
        """Smallest policy version of any sampled token in it; -1 without tokens."""
        return min((o.oldest_version for o in self.outcomes if o.oldest_version is not None), default=-1)


@dataclass(kw_only=True)
class _OpenGroup:
    group: str
    seq: int
    task: str
    pending: list[int]
    running: set[int] = field(default_factory=set)
    attempts: dict[int, int] = field(default_factory=dict)
    """Attempts started so far, by member."""
    losses: dict[int, int] = field(default_factory=dict)
    """Attempts lost to infrastructure, by member."""
    outcomes: dict[int, MemberOutcome] = field(default_factory=dict)


class GroupBook:
    """The open groups of a run, in launch order."""

    def __init__(self, *, group_size: int, max_infra_retries: int, min_usable: int) -> None:
        self._group_size = group_size
        self._max_infra_retries = max_infra_retries
        self._min_usable = min(min_usable, group_size)
        self._open: dict[str, _OpenGroup] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def num_running(self) -> int:
        return sum(len(g.running) for g in self._open.values())

    def open(self, group: str, *, seq: int, task: str) -> None:
        """Add a group; all its members are pending."""
        self._open[group] = _OpenGroup(group=group, seq=seq, task=task, pending=list(range(self._group_size)))

    def restore(self, group: str, member: int, *, attempts: int, outcome: MemberOutcome | None) -> None:
        """Take a member's history from the ledger: attempts already made and, if one stands, its outcome."""
        entry = self._open[group]
        entry.attempts[member] = attempts
        if outcome is not None:
            entry.pending.remove(member)
            entry.outcomes[member] = outcome

    def has_pending(self) -> bool:
        return any(g.pending for g in self._open.values())

    def launch(self, slots: int) -> list[Launch]:
        """Up to `slots` pending members, oldest group first, now counted as running."""
        launches: list[Launch] = []
        for entry in self._open.values():
            while entry.pending and len(launches) < slots:
                member = entry.pending.pop(0)
                attempt = entry.attempts.get(member, 0)
                entry.attempts[member] = attempt + 1
                entry.running.add(member)
                launches.append(
                    Launch(group=entry.group, seq=entry.seq, task=entry.task, member=member, attempt=attempt)
                )
        return launches

    def end(self, group: str, member: int, outcome: MemberOutcome) -> ClosedGroup | None:
        """An attempt ended. Returns the group if that closed it.

        Lost to infrastructure: the member is pending again, at most `max_infra_retries` times; then it stays lost.
        """
        entry = self._open[group]
        entry.running.remove(member)
        if outcome.verdict is Verdict.INFRA_FAILURE:
            entry.losses[member] = entry.losses.get(member, 0) + 1
            if entry.losses[member] <= self._max_infra_retries:
                entry.pending.insert(0, member)
                return None
        entry.outcomes[member] = outcome
        return self.close_if_complete(group)

    def close_if_complete(self, group: str) -> ClosedGroup | None:
        """Remove and return a group that has nothing pending or running."""
        entry = self._open[group]
        if entry.pending or entry.running:
            return None
        del self._open[group]
        usable = tuple(o for _, o in sorted(entry.outcomes.items()) if o.verdict.usable)
        reason = None
        if len(usable) < self._min_usable:
            reason = f"too_few_usable: {len(usable)} of {self._group_size}, {self._min_usable} needed"
        return ClosedGroup(group=group, seq=entry.seq, task=entry.task, outcomes=usable, reason=reason)

    def open_groups(self) -> Iterable[str]:
        return tuple(self._open)
