"""`PodSnapshot`: a tar of a working folder, kept in a file of the controller's. A fallback: it holds nothing else."""

from __future__ import annotations

import itertools
from pathlib import Path

_numbers = itertools.count(1)


class PodSnapshot:
    """Implements `Snapshot`."""

    def __init__(self, file: Path, name: str, workdir: str, leftover_processes: int) -> None:
        self.id = name
        self.workdir = workdir
        """Where it was taken, and goes."""
        self.leftover_processes = leftover_processes
        self.file = file
        self.released = False

    async def release(self) -> None:
        """See `Snapshot.release`."""
        self.released = True
        self.file.unlink(missing_ok=True)


def new_file(folder: Path) -> Path:
    """A file that was not there. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"snapshot-{next(_numbers)}.tar"
