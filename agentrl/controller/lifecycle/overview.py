"""What `agentrl ps` and `agentrl status` say of a run, from its directory."""

from __future__ import annotations

from typing import Any

from agentrl.controller.lifecycle.run_directory import RunDirectory
from agentrl.controller.lifecycle.summary import summarise
from agentrl.ledger.reader import LedgerReader

LOST = "lost its controller"
"""Status of a run that should have one and has none."""


def overview(directory: RunDirectory) -> dict[str, Any]:
    """One line about a run."""
    holder = directory.holder()
    row: dict[str, Any] = {
        "run": directory.name,
        "status": "created",
        "step": 0,
        "steps": directory.load_config().schedule.steps,
        "reward": None,
        "controller": holder.pid if holder else None,
        "directory": str(directory.path),
    }
    if directory.ledger.is_file():
        reader = LedgerReader.open(directory.ledger)
        applied = [step for step in reader.steps() if step.applied_at is not None]
        row["status"] = reader.meta("status") or "created"
        if applied:
            row["step"], row["reward"] = applied[-1].step, applied[-1].reward_sampled
        reader.close()
    if row["status"] == "running" and holder is None:
        row["status"] = LOST
    return row


def status_of(directory: RunDirectory) -> dict[str, Any]:
    """Its figures so far, and which processes it has. Raises UserError without a ledger."""
    row = overview(directory)
    reader = LedgerReader.open(directory.ledger)
    summary = summarise(reader, name=directory.name, seed=directory.load_config().seed)
    summary["status"] = row["status"]
    summary["controller"] = row["controller"]
    summary["detail"] = reader.meta("detail") or ""
    summary["processes"] = {found.role: found.pid for found in reader.processes()} if row["controller"] else {}
    reader.close()
    return summary
