"""From the ledger to the state in which a controller goes on: what a new run and a resumed one start from."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from agentrl.controller.scheduling.groups import ClosedGroup, GroupBook, MemberOutcome
from agentrl.controller.scheduling.ready_pool import ReadyPool
from agentrl.ledger.ledger import Ledger
from agentrl.ledger.reader import LedgerReader
from agentrl.ledger.rows import STATES, EpisodeRow, GroupRow, StepRow
from agentrl.rollout.verdict import Verdict
from agentrl.wire import TrainBatch


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """What the ledger says."""

    reader: LedgerReader
    applied: int
    """Last applied step; its version is the newest one."""
    weights_path: str | None
    """Weights of that version; None at version 0."""
    pending: StepRow | None
    """A step whose batch is fixed but not applied."""
    next_seq: int
    evaluated: frozenset[str]
    """Labels of finished evaluations."""
    lengths: tuple[tuple[str, int], ...]
    """(task, tokens) of every training episode that ended by itself."""


def recover(ledger: Ledger, book: GroupBook, pool: ReadyPool) -> Recovered:
    """Read the ledger and fill the book with the open groups and the pool with the ready ones.

    Episodes that were running are marked unfinished: their sandboxes are gone, and their members start again.
    """
    ledger.abandon_running()
    reader = LedgerReader.of(ledger)
    episodes: dict[str, list[EpisodeRow]] = defaultdict(list)
    for row in reader.episodes():
        episodes[row.group].append(row)
    for group in reader.groups(["ready"]):
        pool.restore(_closed(group, episodes[group.id]))
    for group in reader.groups(["dropped"]):
        if group.step is None and group.reason == "zero_variance":
            pool.restore_consumed(_closed(group, episodes[group.id]))
    for group in reader.groups(["open"]):
        _restore_open(group, episodes[group.id], book)
        if (closed := book.close_if_complete(group.id)) is not None:
            # The last member ended just before the old controller did.
            reason = closed.reason or pool.add(closed)
            ledger.close_group(group.id, "dropped" if reason else "ready", reason=reason)
    steps = reader.steps()
    applied = [s for s in steps if s.applied_at is not None]
    pending = [s for s in steps if s.applied_at is None]
    return Recovered(
        reader=reader,
        applied=applied[-1].step if applied else 0,
        weights_path=applied[-1].weights_path if applied else None,
        pending=pending[0] if pending else None,
        next_seq=reader.next_seq(),
        evaluated=frozenset(row.label for row in reader.evaluations()),
        lengths=_lengths(reader.groups(STATES), episodes),
    )


def load_batch(reader: LedgerReader, row: StepRow) -> TrainBatch:
    """The recorded batch of an assigned step, the same at every call."""
    return TrainBatch(batch_id=row.batch_id, step=row.step, trajectories=reader.load_batch(row.step))


def _lengths(groups: list[GroupRow], episodes: dict[str, list[EpisodeRow]]) -> tuple[tuple[str, int], ...]:
    return tuple(
        (group.task, row.num_tokens or 0)
        for group in groups
        for row in episodes[group.id]
        if row.verdict is not None and Verdict(row.verdict) is not Verdict.INFRA_FAILURE
    )


def _restore_open(group: GroupRow, rows: list[EpisodeRow], book: GroupBook) -> None:
    book.open(group.id, seq=group.seq, task=group.task)
    for member in {row.member for row in rows}:
        attempts = [row for row in rows if row.member == member]
        standing = [row for row in attempts if row.verdict and row.verdict != Verdict.INFRA_FAILURE]
        outcome = _outcome(standing[-1]) if standing else None
        book.restore(group.id, member, attempts=len(attempts), outcome=outcome)


def _closed(group: GroupRow, rows: list[EpisodeRow]) -> ClosedGroup:
    usable = [_outcome(row) for row in rows if row.verdict and Verdict(row.verdict).usable]
    return ClosedGroup(group=group.id, seq=group.seq, task=group.task, outcomes=tuple(usable))


def _outcome(row: EpisodeRow) -> MemberOutcome:
    assert row.verdict is not None
    return MemberOutcome(
        verdict=Verdict(row.verdict),
        reward=row.reward,
        oldest_version=row.oldest_version,
        num_turns=row.num_turns or 0,
        num_tokens=row.num_tokens or 0,
        active_s=row.active_s or 0.0,
    )
