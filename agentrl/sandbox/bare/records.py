"""Records of sandboxes without isolation: what a later process ends and removes when owner and door were killed."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentrl.sandbox.bubblewrap.records import identity, is_running, read
from agentrl.sandbox.supervisor.bare import MARK, remove_folders
from agentrl.sandbox.supervisor.crowd import Seen, look_at, send

_PREFIX = "bare-"
_MAX_SWEEPS = 100
_SWEEP_PAUSE_S = 0.01

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Record:
    """One sandbox's, in a file. It is written before what it names is made."""

    path: Path
    mark: str
    owner: dict[str, Any]
    """`identity` of the process that made it."""
    folders: dict[str, list[int] | None]
    """Folder to [device, inode], lest another of its name is removed; None: it may not have been made yet."""

    def write(self) -> None:
        """Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        content = {"owner": self.owner, "mark": self.mark, "folders": self.folders}
        partial.write_text(json.dumps(content, indent=1))
        partial.rename(self.path)

    def made(self) -> Record:
        """The same, written, once the folders are there. Raises OSError."""
        record = replace(self, folders={folder: _which(folder) for folder in self.folders})
        record.write()
        return record

    def ours(self) -> list[str]:
        """The folders that are still those that were made. One that was never said to be made must be empty."""
        return [folder for folder, which in self.folders.items() if _is_ours(folder, which)]

    def clear(self) -> list[str]:
        """End its processes, remove its folders, forget it. Returns what could not be; then the record stays."""
        problems = _end_marked(self.mark)
        if problem := remove_folders(self.ours()):
            problems.append(problem)
        if not problems:
            self.path.unlink(missing_ok=True)
        return problems


def new_record(state_dir: Path, mark: str, folders: Iterable[str]) -> Record:
    """Written, before its folders are made. Raises OSError."""
    path = state_dir / f"{_PREFIX}{mark}.json"
    record = Record(path, mark, identity(os.getpid()), dict.fromkeys(folders))
    record.write()
    return record


def left_folders(state_dir: Path) -> frozenset[str]:
    """Folders that sandboxes of dead owners left, and that `reap` will remove."""
    return frozenset(folder for record in _stale(state_dir) for folder in record.ours())


def reap(state_dir: Path) -> list[str]:
    """End and remove what owners that are gone left behind. Returns what could not be. Safe beside running owners."""
    left = [problem for record in _stale(state_dir) for problem in record.clear()]
    for problem in left:
        logger.warning("a sandbox without isolation left something: %s", problem)
    return left


def _stale(state_dir: Path) -> list[Record]:
    """Those whose owner is gone."""
    found = [(path, read(path)) for path in sorted(state_dir.glob(f"{_PREFIX}*.json"))]
    return [
        Record(path, content["mark"], content["owner"], content["folders"])
        for path, content in found
        if content is not None and not is_running(content["owner"])
    ]


def _end_marked(mark: str) -> list[str]:
    """Kill every process that has the mark, the door too: what it would do is done here."""
    living: list[Seen] = []
    for _ in range(_MAX_SWEEPS):
        living = [seen for seen in map(look_at, _marked(mark)) if seen is not None and seen.state not in "ZX"]
        if not living:
            return []
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for seen in living:
                send(seen.process, number)
        time.sleep(_SWEEP_PAUSE_S)
    return [f"process {seen.process.pid} outlives SIGKILL" for seen in living]


def _marked(mark: str) -> Iterator[int]:
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environment = Path(entry, "environ").read_bytes()
            except OSError:  # gone, or another user's
                continue
            if wanted in environment.split(b"\0"):
                yield int(entry.name)


def _which(folder: str) -> list[int]:
    info = os.lstat(folder)
    return [info.st_dev, info.st_ino]


def _is_ours(folder: str, which: list[int] | None) -> bool:
    """Whether a folder of a record is the one that was made. One that was never said to be made must be empty."""
    try:
        return _which(folder) == which if which is not None else not os.listdir(folder)  # noqa: PTH208
    except OSError:
        return False
