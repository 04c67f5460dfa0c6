"""Open groups and what each of their members still needs. A state machine without clocks, tasks or clients.

Invariant: every member of an open group is pending, running, or ended with a verdict that stands; every group closes
exactly once, as ready or as dropped with a reason. A group closes as soon as `group_size` members are usable; with
`extra_members` more of them start, and those that still run then are surplus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from agentrl.controller.scheduling.order import Candidate, in_order
from agentrl.rollout.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class MemberOutcome:
    """How one attempt ended, as far as its group cares."""

    verdict: Verdict
    reward: float | None = None
    oldest_version: int | None = None
    num_turns: int = 0
    num_tokens: int = 0
    active_s: float = 0.0


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
    surplus: tuple[int, ...] = ()
    """Members that still run, and are no longer needed."""
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

    def __init__(self, *, group_size: int, max_infra_retries: int, min_usable: int, extra_members: int = 0) -> None:
        self._group_size = group_size
        self._num_members = group_size + extra_members
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
        self._open[group] = _OpenGroup(group=group, seq=seq, task=task, pending=list(range(self._num_members)))

    def restore(self, group: str, member: int, *, attempts: int, outcome: MemberOutcome | None) -> None:
        """Take a member's history from the ledger: attempts already made and, if one stands, its outcome."""
        entry = self._open[group]
        entry.attempts[member] = attempts
        if outcome is not None:
            entry.pending.remove(member)
            entry.outcomes[member] = outcome

    def has_pending(self) -> bool:
        return any(g.pending for g in self._open.values())

    def pending(self) -> list[tuple[str, int]]:
        """Tasks with the number of their pending members, oldest group first."""
        return [(g.task, len(g.pending)) for g in self._open.values() if g.pending]

    @property
    def oldest_seq(self) -> int | None:
        """Launch number of the open group that was launched first."""
        return min((g.seq for g in self._open.values()), default=None)

    def launch(self, slots: int, expected: Callable[[str], float] = lambda task: 0.0) -> list[Launch]:
        """Up to `slots` pending members, now counted as running; which comes first is in `order`.

        `expected`: tokens that an episode of a task is expected to become.
        """
        waiting = [candidate for entry in self._open.values() for candidate in self._candidates(entry)]
        launches = []
        for candidate in in_order(waiting, expected=expected)[:slots]:
            entry = self._open[candidate.group]
            entry.pending.remove(candidate.member)
            entry.attempts[candidate.member] = candidate.attempt + 1
            entry.running.add(candidate.member)
            launches.append(
                Launch(
                    group=candidate.group,
                    seq=candidate.seq,
                    task=candidate.task,
                    member=candidate.member,
                    attempt=candidate.attempt,
                )
            )
        return launches

    def _candidates(self, entry: _OpenGroup) -> Iterable[Candidate]:
        num_missing = self._group_size - _num_usable(entry)
        begun = bool(entry.running or entry.outcomes)
        for member in entry.pending:
            yield Candidate(
                group=entry.group,
                seq=entry.seq,
                task=entry.task,
                member=member,
                attempt=entry.attempts.get(member, 0),
                num_missing=num_missing,
                begun=begun,
            )

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
        """Remove and return a group that has enough usable members, or in which nothing is pending or running."""
        entry = self._open[group]
        if _num_usable(entry) < self._group_size and (entry.pending or entry.running):
            return None
        return self._close(entry)

    def lagging(self) -> dict[str, tuple[int, ...]]:
        """Groups that only wait for members that run, and these members."""
        waiting = (g for g in self._open.values() if g.running and not g.pending and g.outcomes)
        return {g.group: tuple(sorted(g.running)) for g in waiting}

    def outcomes(self, group: str) -> tuple[MemberOutcome, ...]:
        """Usable ones so far, by member."""
        return tuple(o for _, o in sorted(self._open[group].outcomes.items()) if o.verdict.usable)

    def cut(self, group: str) -> ClosedGroup:
        """Close a group without the members that run."""
        return self._close(self._open[group])

    def _close(self, entry: _OpenGroup) -> ClosedGroup:
        usable = self.outcomes(entry.group)
        del self._open[entry.group]
        reason = None
        if len(usable) < self._min_usable:
            reason = f"too_few_usable: {len(usable)} of {self._group_size}, {self._min_usable} needed"
        return ClosedGroup(
            group=entry.group,
            seq=entry.seq,
            task=entry.task,
            outcomes=usable,
            surplus=tuple(sorted(entry.running)),
            reason=reason,
        )

    def open_groups(self) -> Iterable[str]:
        return tuple(self._open)


def _num_usable(entry: _OpenGroup) -> int:
    return sum(outcome.verdict.usable for outcome in entry.outcomes.values())
