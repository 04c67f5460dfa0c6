"""How the ledger's file is opened, and its key-value table."""

from __future__ import annotations

import sqlite3
from pathlib import Path


def connect(path: Path | str, *, read_only: bool = False) -> sqlite3.Connection:
    """autocommit mode: transactions are begun explicitly."""
    if read_only:
        return sqlite3.connect(f"{Path(path).resolve().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=30)
    db = sqlite3.connect(path, isolation_level=None, timeout=30)
    db.execute("PRAGMA journal_mode = WAL")
    # NORMAL: a killed process loses nothing; only a power cut may lose the last transactions, never the consistency.
    db.execute("PRAGMA synchronous = NORMAL")
    return db


def schema_version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def read_meta(db: sqlite3.Connection, key: str) -> str | None:
    row = db.execute("SELECT value FROM run WHERE key = ?", (key,)).fetchone()
    return row[0] if row else None


def write_meta(db: sqlite3.Connection, key: str, value: str) -> None:
    db.execute("INSERT OR REPLACE INTO run VALUES (?, ?)", (key, value))
