"""What GPUs' time went to, and how the balance decided: written by the controller, read by reports."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from agentrl.ledger.ledger import Ledger
from agentrl.ledger.reader import LedgerReader


@dataclass(frozen=True, kw_only=True)
class GpuTimeRow:
    """Time that a lane spent on one use for one step."""

    lane: str
    step: int
    use: str
    num_gpus: int
    began_at: float
    """When the lane was first in that use for that step, in seconds since the Unix epoch."""
    spent_us: int
    """Wall time in microseconds; GPU time is that times `num_gpus`."""


@dataclass(frozen=True, kw_only=True)
class BalanceRow:
    """One decision about the swing engines. Times in seconds."""

    step: int
    decided_at: float
    choice: str
    reason: str
    predicted_s: float | None
    """Until the next training starts."""
    alternative_s: float | None
    """The same, had the other been chosen."""
    inputs: dict[str, Any]
    realised_s: float | None = None
    """What `predicted_s` came to; None while that is not known, and where a later decision took its place."""


@dataclass(frozen=True, kw_only=True)
class PublicationRow:
    """What it took to make a version live."""

    version: int
    method: str
    latency_s: float
    """From the step's report to its end."""
    downtime_s: float
    """For so long no engine was sent anything."""
    received_bytes: int
    """Of weights that travelled to engines since the publication before."""
    engines: int
    probe_difference: float | None


class Accounts:
    """Writes through a run's ledger, under its controller's epoch."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def add_gpu_time(self, rows: Sequence[GpuTimeRow]) -> None:
        """Add to what is known of each step, lane and use."""
        with self._ledger._write() as db:
            db.executemany(
                "INSERT INTO gpu_time (lane, step, use, num_gpus, began_at, spent_us) VALUES (?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (lane, step, use) DO UPDATE SET spent_us = spent_us + excluded.spent_us",
                [(r.lane, r.step, r.use, r.num_gpus, r.began_at, r.spent_us) for r in rows],
            )

    def record_publication(self, row: PublicationRow) -> None:
        """Write a publication down; the last one of a version counts."""
        values = asdict(row)
        with self._ledger._write() as db:
            db.execute(
                f"INSERT OR REPLACE INTO publications ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})",
                list(values.values()),
            )

    def record_decision(self, row: BalanceRow) -> int:
        """Write a decision down. Returns its number, for `realise`."""
        with self._ledger._write() as db:
            cursor = db.execute(
                "INSERT INTO balance (step, decided_at, choice, reason, predicted_s, alternative_s, inputs) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    row.step,
                    row.decided_at,
                    row.choice,
                    row.reason,
                    row.predicted_s,
                    row.alternative_s,
                    json.dumps(row.inputs),
                ),
            )
        number = cursor.lastrowid
        assert number is not None
        return number

    def realise(self, number: int, realised_s: float) -> None:
        """What a decision came to."""
        with self._ledger._write() as db:
            db.execute("UPDATE balance SET realised_s = ? WHERE id = ?", (realised_s, number))


def read_gpu_time(reader: LedgerReader) -> list[GpuTimeRow]:
    """By step, lane and use."""
    rows = reader.query("SELECT lane, step, use, num_gpus, began_at, spent_us FROM gpu_time ORDER BY step, lane, use")
    return [
        GpuTimeRow(lane=lane, step=step, use=use, num_gpus=num_gpus, began_at=began_at, spent_us=spent_us)
        for lane, step, use, num_gpus, began_at, spent_us in rows
    ]


def read_publications(reader: LedgerReader) -> list[PublicationRow]:
    """By version."""
    rows = reader.query(
        "SELECT version, method, latency_s, downtime_s, received_bytes, engines, probe_difference "
        "FROM publications ORDER BY version"
    )
    return [
        PublicationRow(
            version=version,
            method=method,
            latency_s=latency_s,
            downtime_s=downtime_s,
            received_bytes=received_bytes,
            engines=engines,
            probe_difference=probe_difference,
        )
        for version, method, latency_s, downtime_s, received_bytes, engines, probe_difference in rows
    ]


def read_balance(reader: LedgerReader) -> list[BalanceRow]:
    """In the order in which it was decided."""
    rows = reader.query(
        "SELECT step, decided_at, choice, reason, predicted_s, alternative_s, inputs, realised_s "
        "FROM balance ORDER BY id"
    )
    return [
        BalanceRow(
            step=step,
            decided_at=decided_at,
            choice=choice,
            reason=reason,
            predicted_s=predicted_s,
            alternative_s=alternative_s,
            inputs=json.loads(inputs),
            realised_s=realised_s,
        )
        for step, decided_at, choice, reason, predicted_s, alternative_s, inputs, realised_s in rows
    ]
