"""Weights in shared memory, and notes of it in the run's directory, by which what slips through is found."""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Mapping
from pathlib import Path

import msgspec
from torch import Tensor

from agentrl.errors import AgentrlError
from agentrl.trainer.job import MANAGER, SHARED_MEMORY, ManagerNote, shared_memory_notes
from agentrl.transfer.handles import share


class SharedMemory:
    """What one rank 0 has shared. A piece goes with the last reference to its tensors."""

    def __init__(self, run_dir: Path) -> None:
        self._notes = shared_memory_notes(run_dir)
        self._notes.mkdir(parents=True, exist_ok=True)
        self._known = ""

    def share(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies in shared memory. Raises AgentrlError if there is no room: a page that is not there kills."""
        needed, free = sum(t.nbytes for t in tensors.values()), shutil.disk_usage(SHARED_MEMORY).free
        if needed > free:
            raise AgentrlError(
                f"{SHARED_MEMORY} has {free >> 20} MiB free, and weights of {needed >> 20} MiB are to be shared",
                hint="give it room for two versions, or choose another publish.method",
            )
        copies, name, socket = share(list(tensors.values()))
        note = self._notes / name
        note.touch()
        # Not at this process's end: then only the manager knows when the piece is gone.
        weakref.finalize(copies[0], note.unlink, missing_ok=True).atexit = False
        self._note_manager(socket)
        return dict(zip(tensors, copies, strict=True))

    def _note_manager(self, socket: str) -> None:
        if socket == self._known:
            return
        self._known = socket
        for pid in _children():
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(MANAGER.encode()):
                note = msgspec.json.encode(ManagerNote(pid=pid, socket=socket))
                (self._notes / f"manager-{pid}.json").write_bytes(note)


def _children() -> list[int]:
    """Processes that this one has started."""
    me = str(os.getpid())
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue  # it has just ended
            if stat.rpartition(")")[2].split()[1] == me:
                found.append(int(entry.name))
    return found
