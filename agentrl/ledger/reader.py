"""Reading a ledger: for the CLI and reports, and for a controller that goes on where another stopped."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentrl.errors import UserError
from agentrl.ledger.database import connect, read_meta, schema_version
from agentrl.ledger.ledger import Ledger
from agentrl.ledger.rows import EpisodeRow, EpisodeTimes, EvaluationRow, GroupRow, ProcessRow, StepRow, TurnTimes
from agentrl.ledger.schema import SCHEMA_VERSION
from agentrl.wire import Trajectory, decode


class LedgerReader:
    """Read-only view of a ledger, for the CLI and reports, and for the controller's restart."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    @classmethod
    def open(cls, path: Path) -> LedgerReader:
        """Raises UserError if there is no ledger or it is of another schema version."""
        if not path.is_file():
            raise UserError(f"{path}: no ledger there", hint="`agentrl ps` lists the runs")
        reader = cls(connect(path, read_only=True))
        version = schema_version(reader._db)
        if version not in (0, SCHEMA_VERSION):
            raise UserError(f"{path}: schema version {version}, this agentrl reads {SCHEMA_VERSION}")
        return reader

    @classmethod
    def of(cls, ledger: Ledger) -> LedgerReader:
        """Reads through the writer's own connection."""
        return cls(ledger._db)

    def close(self) -> None:
        self._db.close()

    def meta(self, key: str) -> str | None:
        return read_meta(self._db, key) if schema_version(self._db) else None

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of a SELECT, for the other modules of this package."""
        return self._db.execute(sql).fetchall()

    def groups(self, states: Iterable[str]) -> list[GroupRow]:
        """Groups in any of `states`, in launch order."""
        wanted = list(states)
        marks = ", ".join("?" * len(wanted))
        rows = self._db.execute(
            "SELECT id, seq, task, state, reason, step, opened_at, closed_at FROM groups "
            f"WHERE state IN ({marks}) ORDER BY seq",
            wanted,
        )
        return [GroupRow(*row) for row in rows]

    def next_seq(self) -> int:
        """Launch number after the highest used one."""
        return int(self._db.execute("SELECT coalesce(max(seq), -1) + 1 FROM groups").fetchone()[0])

    def episodes(self, group: str | None = None) -> list[EpisodeRow]:
        """Attempts of one group, or of all."""
        where, values = ("WHERE group_id = ?", (group,)) if group else ("", ())
        rows = self._db.execute(
            "SELECT id, group_id, member, attempt, verdict, cause, reward, num_turns, num_tokens, active_s, "
            f"oldest_version, newest_version FROM episodes {where} ORDER BY id",
            values,
        )
        return [EpisodeRow(*row) for row in rows]

    def episode_times(self) -> list[EpisodeTimes]:
        """Ended training episodes, in the order in which they began."""
        rows = self._db.execute(
            "SELECT id, group_id, started_at, ended_at, verdict, cause, reward FROM episodes "
            "WHERE ended_at IS NOT NULL ORDER BY started_at, id"
        )
        return [EpisodeTimes(*row) for row in rows]

    def turn_times(self) -> list[TurnTimes]:
        """Finished turns of training episodes, by episode."""
        rows = self._db.execute(
            "SELECT episode, turn, began_at, ended_at, generation_s, tool_s, num_sampled, num_prompt, num_observed, "
            "command IS NOT NULL FROM turns WHERE episode IN (SELECT id FROM episodes) ORDER BY episode, turn"
        )
        return [TurnTimes(*(*row[:-1], bool(row[-1]))) for row in rows]

    def start_times(self) -> list[float]:
        """Seconds that the starts of sandboxes took, as they came up."""
        return [took_s for (took_s,) in self._db.execute("SELECT took_s FROM sandbox_starts ORDER BY rowid")]

    def steps(self) -> list[StepRow]:
        """All steps, in order."""
        return [_step(row) for row in self._db.execute(f"{_SELECT_STEPS} ORDER BY step")]

    def step(self, step: int) -> StepRow:
        """One step that was assigned."""
        return _step(self._db.execute(f"{_SELECT_STEPS} WHERE step = ?", (step,)).fetchone())

    def load_batch(self, step: int) -> list[Trajectory]:
        """Usable trajectories of the groups batched in a step, in launch order."""
        rows = self._db.execute(
            "SELECT e.trajectory FROM episodes e JOIN groups g ON e.group_id = g.id "
            "WHERE g.step = ? AND g.state = 'batched' AND e.trajectory IS NOT NULL ORDER BY g.seq, e.member, e.attempt",
            (step,),
        )
        return [decode(blob, Trajectory) for (blob,) in rows]

    def evaluations(self) -> list[EvaluationRow]:
        rows = self._db.execute("SELECT label, version, episode, task, verdict, reward FROM evaluations")
        return [EvaluationRow(*row) for row in rows]

    def verdict_counts(self) -> dict[str, int]:
        """Ended episodes by verdict."""
        rows = self._db.execute("SELECT verdict, count(*) FROM episodes WHERE verdict IS NOT NULL GROUP BY verdict")
        return dict(rows.fetchall())

    def sequence_counts(self) -> dict[str, int]:
        """Of ended episodes: token sequences, breaks by kind, dropped tokens (`rollout.evidence.Sequences`)."""
        names = ("num", "template_breaks", "history_breaks", "dropped_tokens")
        sums = ", ".join(f"COALESCE(SUM(json_extract(evidence, '$.sequences.{name}')), 0)" for name in names)
        row = self._db.execute(f"SELECT {sums} FROM episodes WHERE verdict IS NOT NULL").fetchone()
        return dict(zip(names, row, strict=True))

    def drop_counts(self) -> dict[str, int]:
        """Dropped groups by the word before the colon of their reason."""
        reasons = self._db.execute("SELECT reason FROM groups WHERE state = 'dropped'")
        return Counter(reason.partition(":")[0] for (reason,) in reasons)

    def processes(self) -> list[ProcessRow]:
        """Processes not known to have ended."""
        rows = self._db.execute("SELECT pid, start_ticks, role, started_at FROM processes WHERE ended_at IS NULL")
        return [ProcessRow(*row) for row in rows]


_SELECT_STEPS = (
    "SELECT step, batch_id, assigned_at, time_to_batch_s, reward_sampled, applied_at, published_at, weights_path, "
    "metrics FROM steps"
)


def _step(row: tuple[Any, ...]) -> StepRow:
    *values, metrics = row
    return StepRow(*values, metrics=json.loads(metrics or "{}"))
