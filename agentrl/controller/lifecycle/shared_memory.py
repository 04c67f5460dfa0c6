"""Removes the shared memory of a run's trainers that nobody has removed, and ends the processes that kept it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from pathlib import Path

import msgspec

from agentrl.trainer.job import MANAGER, SHARED_MEMORY, ManagerNote, shared_memory_notes


def reap_shared_memory(run_dir: Path) -> None:
    """By the notes that trainers leave; only when no process of the run is left. Idempotent."""
    notes = shared_memory_notes(run_dir)
    for note in notes.glob("manager-*.json"):
        with contextlib.suppress(msgspec.DecodeError):  # its writer was killed while it wrote
            _end(msgspec.json.decode(note.read_bytes(), type=ManagerNote))
        note.unlink()
    for note in notes.glob("torch_*"):
        (SHARED_MEMORY / note.name).unlink(missing_ok=True)
        note.unlink()


def _end(manager: ManagerNote) -> None:
    """It may be gone, and its number be another's: the socket in its folder is its own, and goes with it."""
    folder = Path(manager.socket).parent
    if not folder.is_dir():
        return
    with contextlib.suppress(OSError):
        if Path(f"/proc/{manager.pid}/cmdline").read_bytes().startswith(MANAGER.encode()):
            os.kill(manager.pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)
