"""Records of what a provider made outside its own process, so that a later process can remove it: `reap`.

A control group also carries its owner in its name, so that one whose record is lost is found as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
from pathlib import Path
from typing import Any

from agentrl.sandbox.bubblewrap.images import cache_folder, sweep
from agentrl.sandbox.supervisor.cgroups import remove_base

_PREFIX = "bubblewrap-"
_GROUP_NAME = re.compile(r"agentrl-(\d+)-(\d+)-(\d+)-[0-9a-f]+")


def group_name() -> str:
    """A new name for the control groups of this process: its pid, its start, its pid namespace, and chance."""
    pid = os.getpid()
    return f"agentrl-{pid}-{_start_ticks(pid)}-{_pid_namespace()}-{secrets.token_hex(4)}"


def write(state_dir: Path, name: str, supervisor_pid: int, bases: list[str], cache: Path) -> Path:
    """Record the supervisor and the base control groups of this process, and where it builds images.

    Returns the record's path.
    """
    state_dir.mkdir(parents=True, exist_ok=True)
    owner, supervisor = identity(os.getpid()), identity(supervisor_pid)
    record = {"owner": owner, "supervisor": supervisor, "cgroups": bases, "cache": str(cache)}
    path = state_dir / f"{_PREFIX}{name}.json"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(record, indent=1))
    return partial.rename(path)


def remove_remains(path: Path) -> list[str]:
    """Kill and remove what a record names, then the record. Returns what could not be removed; then it stays."""
    record = read(path)
    if record is not None:
        if is_running(record["supervisor"]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(record["supervisor"]["pid"], signal.SIGKILL)
        sweep(Path(record["cache"]))
        left = [base for base in record["cgroups"] if not remove_base(base)]
        if left:
            return left
    path.unlink(missing_ok=True)
    return []


def reap(state_dir: Path, cache: Path | None = None) -> list[str]:
    """Remove what owners that are gone left behind. Returns what could not be removed. Safe beside running owners.

    `cache` is where images are built, None the user's own; records name further ones.

    Sandboxes die with their supervisor, and it with its owner, and with it goes what it mounted. What can be left are
    empty control groups, and an image that was being built.
    """
    sweep(cache or cache_folder(None))
    left = [base for base in _stale_groups() if not remove_base(base)]
    for path in sorted(state_dir.glob(f"{_PREFIX}*.json")):
        record = read(path)
        if record is None or not is_running(record["owner"]):
            left += remove_remains(path)
    return left


def _stale_groups() -> list[str]:
    """Control groups whose names say that their owner was of this pid namespace, and is gone."""
    found = []
    for folder, names, _ in os.walk("/sys/fs/cgroup"):
        for name in names:
            match = _GROUP_NAME.fullmatch(name)
            if match and match[3] == _pid_namespace() and str(_start_ticks(int(match[1]))) != match[2]:
                found.append(f"{folder}/{name}")
        names[:] = [name for name in names if not name.startswith("agentrl-")]
    return found


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").stat().st_ino)


def read(path: Path) -> dict[str, Any] | None:
    """None for a file that is no record, or was just removed by another process."""
    try:
        record: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return record


def identity(pid: int) -> dict[str, Any]:
    """A process across reuse of its pid and restarts of the machine."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {"pid": pid, "started": _start_ticks(pid), "boot": boot}


def is_running(known: dict[str, Any]) -> bool:
    """Whether the process of an `identity` still runs."""
    return _start_ticks(known["pid"]) is not None and identity(known["pid"]) == known


def _start_ticks(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
