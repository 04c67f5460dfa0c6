"""Records of what a provider made outside its own process, so that a later process can remove it: `reap`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

from agentrl.sandbox.supervisor.cgroups import remove_base

_PREFIX = "bubblewrap-"


def write(state_dir: Path, name: str, supervisor_pid: int, bases: list[str]) -> Path:
    """Record the supervisor and the base control groups of this process. Returns the record's path."""
    state_dir.mkdir(parents=True, exist_ok=True)
    record = {"owner": _identity(os.getpid()), "supervisor": _identity(supervisor_pid), "cgroups": bases}
    path = state_dir / f"{_PREFIX}{name}.json"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(record, indent=1))
    return partial.rename(path)


def remove_remains(path: Path) -> list[str]:
    """Kill and remove what a record names, then the record. Returns what could not be removed; then it stays."""
    record = _read(path)
    if record is not None:
        if _is_running(record["supervisor"]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(record["supervisor"]["pid"], signal.SIGKILL)
        left = [base for base in record["cgroups"] if not remove_base(base)]
        if left:
            return left
    path.unlink(missing_ok=True)
    return []


def reap(state_dir: Path) -> list[str]:
    """Remove what owners that are gone left behind. Returns what could not be removed. Safe beside running owners.

    Sandboxes die with their supervisor, and it with its owner; what can be left are empty control groups.
    """
    left: list[str] = []
    for path in sorted(state_dir.glob(f"{_PREFIX}*.json")):
        record = _read(path)
        if record is None or not _is_running(record["owner"]):
            left += remove_remains(path)
    return left


def _read(path: Path) -> dict[str, Any] | None:
    """None for a file that is no record, or was just removed by another process."""
    try:
        record: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return record


def _identity(pid: int) -> dict[str, Any]:
    """A process across reuse of its pid and restarts of the machine."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {"pid": pid, "started": _start_ticks(pid), "boot": boot}


def _is_running(identity: dict[str, Any]) -> bool:
    started = _start_ticks(identity["pid"])
    return started is not None and _identity(identity["pid"]) == identity


def _start_ticks(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
