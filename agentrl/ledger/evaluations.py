"""Results of `agentrl eval`, in a ledger of their own: the file `evaluations.sqlite` beside the run's.

The run's own ledger has one writer, its controller; evaluations come from other processes, also while a run is live and
several at once. So they have a file apart, in which each writes rows under a number of its own, a transaction each.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.clock import wall
from agentrl.errors import LedgerError, UserError
from agentrl.ledger.database import connect, schema_version

_SCHEMA_VERSION = 1
# IF NOT EXISTS: another process may have made them since this one looked.
_TABLES = """
CREATE TABLE IF NOT EXISTS evaluations (
  id INTEGER PRIMARY KEY,
  began_at REAL NOT NULL,
  ended_at REAL,                        -- NULL: it runs, or did not come to its end
  weights TEXT NOT NULL,                -- folder
  version INTEGER NOT NULL,
  tasks TEXT NOT NULL,                  -- what was asked for: heldout, a family, a folder
  num_tasks INTEGER NOT NULL,
  num_samples INTEGER NOT NULL,         -- of each task
  seed INTEGER NOT NULL,
  fingerprint TEXT NOT NULL,            -- JSON: names and values
  figures TEXT                          -- JSON
);

CREATE TABLE IF NOT EXISTS samples (
  evaluation INTEGER NOT NULL REFERENCES evaluations (id),
  task TEXT NOT NULL,
  sample INTEGER NOT NULL,
  verdict TEXT NOT NULL,
  cause TEXT NOT NULL,
  reward REAL,                          -- NULL without a usable verdict
  num_turns INTEGER NOT NULL,
  num_sampled INTEGER NOT NULL,         -- tokens, all of the evaluation's version; 0 without a usable verdict
  evidence TEXT NOT NULL,               -- JSON
  PRIMARY KEY (evaluation, task, sample)
) WITHOUT ROWID;
"""


@dataclass(frozen=True, kw_only=True)
class EvaluationStart:
    """What is evaluated, and how."""

    weights: str
    version: int
    tasks: str
    num_tasks: int
    num_samples: int
    seed: int
    fingerprint: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class SampleRow:
    """One sample of one task."""

    task: str
    sample: int
    verdict: str
    cause: str
    reward: float | None
    num_turns: int
    num_sampled: int
    evidence: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class EvaluationRecord:
    """One evaluation as it is kept."""

    id: int
    began_at: float
    ended_at: float | None
    start: EvaluationStart
    figures: dict[str, Any] | None


class EvaluationLedger:
    """One process's view; any number of processes may write."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    @classmethod
    def open(cls, path: Path) -> EvaluationLedger:
        """For writing, creating it if needed. Raises UserError."""
        try:
            db = connect(path)
            if schema_version(db) == 0:
                db.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {_SCHEMA_VERSION}; COMMIT;")
        except sqlite3.Error as error:
            raise UserError(f"{path}: cannot be written: {error}") from error
        _check(path, db)
        return cls(db)

    def close(self) -> None:
        self._db.close()

    def begin(self, start: EvaluationStart) -> int:
        """Number of the evaluation, for the other methods."""
        cursor = self._execute(
            "INSERT INTO evaluations (began_at, weights, version, tasks, num_tasks, num_samples, seed, fingerprint) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            wall(),
            start.weights,
            start.version,
            start.tasks,
            start.num_tasks,
            start.num_samples,
            start.seed,
            json.dumps(dict(start.fingerprint)),
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def record(self, evaluation: int, row: SampleRow) -> None:
        self._execute(
            "INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            evaluation,
            row.task,
            row.sample,
            row.verdict,
            row.cause,
            row.reward,
            row.num_turns,
            row.num_sampled,
            json.dumps(dict(row.evidence)),
        )

    def end(self, evaluation: int, figures: Mapping[str, Any]) -> None:
        """It is complete, and this is what it came to."""
        self._execute(
            "UPDATE evaluations SET ended_at = ?, figures = ? WHERE id = ?",
            wall(),
            json.dumps(dict(figures)),
            evaluation,
        )

    def _execute(self, sql: str, *values: object) -> sqlite3.Cursor:
        try:
            return self._db.execute(sql, values)
        except sqlite3.OperationalError as error:
            raise LedgerError(f"cannot write the evaluation: {error}") from error


def read_evaluations(path: Path) -> list[EvaluationRecord]:
    """All of a file, oldest first; none of a file that is not there. Raises UserError."""
    if not path.is_file():
        return []
    with closing(connect(path, read_only=True)) as db:
        _check(path, db)
        rows = db.execute(
            "SELECT id, began_at, ended_at, weights, version, tasks, num_tasks, num_samples, seed, "
            "fingerprint, figures FROM evaluations ORDER BY id"
        ).fetchall()
    return [_record(row) for row in rows]


def read_samples(path: Path, evaluation: int) -> list[SampleRow]:
    """Of one evaluation, by task."""
    with closing(connect(path, read_only=True)) as db:
        rows = db.execute(
            "SELECT task, sample, verdict, cause, reward, num_turns, num_sampled, evidence FROM samples "
            "WHERE evaluation = ? ORDER BY task, sample",
            (evaluation,),
        ).fetchall()
    names = ("task", "sample", "verdict", "cause", "reward", "num_turns", "num_sampled")
    return [
        SampleRow(**dict(zip(names, values, strict=True)), evidence=json.loads(evidence)) for *values, evidence in rows
    ]


def _record(row: tuple[Any, ...]) -> EvaluationRecord:
    number, began_at, ended_at, weights, version, tasks, num_tasks, num_samples, seed, fingerprint, figures = row
    return EvaluationRecord(
        id=number,
        began_at=began_at,
        ended_at=ended_at,
        start=EvaluationStart(
            weights=weights,
            version=version,
            tasks=tasks,
            num_tasks=num_tasks,
            num_samples=num_samples,
            seed=seed,
            fingerprint=json.loads(fingerprint),
        ),
        figures=None if figures is None else json.loads(figures),
    )


def _check(path: Path, db: sqlite3.Connection) -> None:
    if (version := schema_version(db)) != _SCHEMA_VERSION:
        raise UserError(f"{path}: schema version {version}, this agentrl reads {_SCHEMA_VERSION}")
