"""The durable record of a run: SQLite in WAL mode, one writer. All SQL of the project is in this package.

Writes are synchronous: when a method returns, a kill of this process loses nothing. Every write names the epoch of its
controller; after another controller has taken the ledger over, an older one's writes raise Superseded.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentrl.clock import wall
from agentrl.errors import LedgerError, Superseded
from agentrl.ledger.database import connect, read_meta, schema_version, write_meta
from agentrl.ledger.rows import EvaluationRow, ProcessRow, StepRow
from agentrl.ledger.schema import SCHEMA_VERSION, TABLES
from agentrl.wire import Trajectory, encode


class Ledger:
    """One run's ledger, opened by its controller for writing."""

    def __init__(self, connection: sqlite3.Connection, epoch: int) -> None:
        self._db = connection
        self.epoch = epoch

    @classmethod
    def take(cls, path: Path | str) -> Ledger:
        """Open for writing, creating it if needed, under a new epoch. Older controllers can write no more."""
        db = connect(path)
        if schema_version(db) == 0:
            db.executescript(f"BEGIN IMMEDIATE; {TABLES} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
        with db:
            db.execute("BEGIN IMMEDIATE")
            epoch = int(read_meta(db, "epoch") or 0) + 1
            write_meta(db, "epoch", str(epoch))
        return cls(db, epoch)

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        """A transaction that commits only while this controller's epoch is the ledger's. Raises LedgerError."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                current = int(read_meta(self._db, "epoch") or 0)
                if current != self.epoch:
                    raise Superseded(f"controller of epoch {self.epoch} was superseded by epoch {current}")
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.OperationalError as error:
            raise LedgerError(f"cannot write the ledger: {error}", hint="make room, then resume the run") from error

    # --- the run

    def set_status(self, status: str) -> None:
        """running, finished, stopped, paused or failed, with the reason behind a colon."""
        with self._write() as db:
            write_meta(db, "status", status)

    def set_meta(self, key: str, value: str) -> None:
        with self._write() as db:
            write_meta(db, key, value)

    # --- groups and episodes

    def open_group(self, group: str, *, seq: int, task: str) -> None:
        with self._write() as db:
            db.execute(
                "INSERT INTO groups (id, seq, task, state, opened_at) VALUES (?, ?, ?, 'open', ?)",
                (group, seq, task, wall()),
            )

    def close_group(self, group: str, state: str, *, reason: str | None = None, step: int | None = None) -> None:
        """Move an open group to ready or dropped, or a ready one to dropped; anything else is a bug of the caller."""
        allowed = "('open')" if state == "ready" else "('open', 'ready')"
        with self._write() as db:
            changed = db.execute(
                f"UPDATE groups SET state = ?, reason = ?, step = ?, closed_at = ? WHERE id = ? AND state IN {allowed}",
                (state, reason, step, wall(), group),
            ).rowcount
        assert changed == 1, f"group {group} cannot become {state}"

    def start_episode(self, episode: str, *, group: str, member: int, attempt: int, version: int | None = None) -> None:
        """`version`: the policy version that the engines serve now."""
        with self._write() as db:
            db.execute(
                "INSERT INTO episodes (id, group_id, member, attempt, epoch, version, started_at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (episode, group, member, attempt, self.epoch, version, wall()),
            )

    def end_episode(
        self,
        episode: str,
        *,
        verdict: str,
        cause: str,
        num_turns: int,
        num_tokens: int,
        active_s: float,
        evidence: dict[str, Any],
        trajectory: Trajectory | None,
    ) -> None:
        """Write an episode's verdict, once. A usable one brings its trajectory."""
        with self._write() as db:
            changed = db.execute(
                "UPDATE episodes SET ended_at = ?, verdict = ?, cause = ?, reward = ?, num_turns = ?, num_tokens = ?, "
                "active_s = ?, oldest_version = ?, newest_version = ?, evidence = ?, trajectory = ? "
                "WHERE id = ? AND ended_at IS NULL",
                (
                    wall(),
                    verdict,
                    cause,
                    trajectory.reward if trajectory else None,
                    num_turns,
                    num_tokens,
                    active_s,
                    trajectory.oldest_version if trajectory else None,
                    trajectory.newest_version if trajectory else None,
                    json.dumps(evidence),
                    encode(trajectory) if trajectory else None,
                    episode,
                ),
            ).rowcount
            if trajectory is not None:
                db.execute("UPDATE turns SET segment = x'' WHERE episode = ?", (episode,))
        assert changed == 1, f"episode {episode} has ended already, or never started"

    def record_turn(
        self,
        *,
        episode: str,
        turn: int,
        began_at: float,
        message: str,
        command: str | None,
        timeout_s: float | None,
        exit_code: int | None,
        result: dict[str, Any] | None,
        observation: str | None,
        generation_s: float,
        tool_s: float,
        suspended_s: float,
        num_sampled: int,
        num_prompt: int,
        num_observed: int,
        segment: bytes,
    ) -> None:
        with self._write() as db:
            db.execute(
                "INSERT INTO turns (episode, turn, began_at, ended_at, message, command, exit_code, observation, "
                "generation_s, tool_s, num_sampled, num_prompt, num_observed, segment, timeout_s, result, suspended_s) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    episode,
                    turn,
                    began_at,
                    wall(),
                    message,
                    command,
                    exit_code,
                    observation,
                    generation_s,
                    tool_s,
                    num_sampled,
                    num_prompt,
                    num_observed,
                    segment,
                    timeout_s,
                    None if result is None else json.dumps(result),
                    suspended_s,
                ),
            )

    def cancel_episode(self, episode: str, *, cause: str, num_turns: int, num_tokens: int) -> None:
        """It is not needed any more: it has no verdict and never will. The numbers say how far it came."""
        with self._write() as db:
            changed = db.execute(
                "UPDATE episodes SET cause = ?, ended_at = ?, num_turns = ?, num_tokens = ? "
                "WHERE id = ? AND ended_at IS NULL",
                (cause, wall(), num_turns, num_tokens, episode),
            ).rowcount
        assert changed == 1, f"episode {episode} has ended already, or never started"

    def abandon_running(self) -> int:
        """Mark the episodes that no controller runs any more as unfinished: they have no verdict and never will.

        Returns how many. Their groups start them again, as a further attempt.
        """
        with self._write() as db:
            return db.execute(
                "UPDATE episodes SET cause = 'unfinished', ended_at = ? WHERE ended_at IS NULL", (wall(),)
            ).rowcount

    def record_start(self, took_s: float) -> None:
        """A sandbox came up."""
        with self._write() as db:
            db.execute("INSERT INTO sandbox_starts VALUES (?, ?)", (wall(), took_s))

    # --- steps

    def assign_batch(self, step: StepRow, groups: Sequence[str], consumed: Sequence[str]) -> None:
        """Fix the batch of a step: `groups` become batched, `consumed` (dropped ones) are charged to it.

        One transaction, so that a group is in one batch or in none whatever dies.
        """
        with self._write() as db:
            db.execute(
                "INSERT INTO steps (step, batch_id, assigned_at, time_to_batch_s, reward_sampled) "
                "VALUES (?, ?, ?, ?, ?)",
                (step.step, step.batch_id, step.assigned_at, step.time_to_batch_s, step.reward_sampled),
            )
            for group in groups:
                changed = db.execute(
                    "UPDATE groups SET state = 'batched', step = ? WHERE id = ? AND state = 'ready'", (step.step, group)
                ).rowcount
                assert changed == 1, f"group {group} is not ready"
            db.executemany(
                "UPDATE groups SET step = ? WHERE id = ? AND state = 'dropped'", [(step.step, g) for g in consumed]
            )

    def apply_step(self, step: int, *, weights_path: str, metrics: dict[str, float]) -> bool:
        """The trainer has version `step` on disk. False if that was known."""
        with self._write() as db:
            changed = db.execute(
                "UPDATE steps SET applied_at = ?, weights_path = ?, metrics = ? WHERE step = ? AND applied_at IS NULL",
                (wall(), weights_path, json.dumps(metrics), step),
            ).rowcount
        return changed == 1

    def publish_step(self, step: int) -> None:
        """The engines serve version `step`. The first time counts."""
        with self._write() as db:
            db.execute("UPDATE steps SET published_at = ? WHERE step = ? AND published_at IS NULL", (wall(), step))

    def prune_trajectories(self, *, before_step: int) -> None:
        """Forget the tokens of what was trained on in earlier steps, and of what was dropped for them.

        Rows, verdicts, rewards and turns stay. Rows are few and tokens are many: a batch of long episodes is 100 MB.
        """
        with self._write() as db:
            db.execute(
                "UPDATE episodes SET trajectory = NULL WHERE trajectory IS NOT NULL "
                "AND group_id IN (SELECT id FROM groups WHERE step < ? AND state IN ('batched', 'dropped'))",
                (before_step,),
            )

    # --- evaluations and processes

    def record_evaluations(self, rows: Sequence[EvaluationRow]) -> None:
        """All results of one evaluation, or none."""
        with self._write() as db:
            db.executemany(
                "INSERT INTO evaluations VALUES (?, ?, ?, ?, ?, ?)",
                [(r.label, r.version, r.episode, r.task, r.verdict, r.reward) for r in rows],
            )

    def record_process(self, row: ProcessRow) -> None:
        with self._write() as db:
            db.execute(
                "INSERT OR REPLACE INTO processes VALUES (?, ?, ?, ?, ?, NULL)",
                (row.pid, row.start_ticks, row.role, self.epoch, row.started_at),
            )

    def end_process(self, pid: int, start_ticks: int) -> None:
        with self._write() as db:
            db.execute(
                "UPDATE processes SET ended_at = ? WHERE pid = ? AND start_ticks = ?", (wall(), pid, start_ticks)
            )
