"""Which layers of the cache are in use, and which of the others go when they take more than they may.

Each process that uses layers has a file in the folder `uses`, which it holds locked, with their keys in it; a process
that dies lets go. Only under the lock of that folder a layer is noted as used, or taken away: by a rename, so that no
sandbox ever starts on half of one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

PARTIAL, LOCK = ".partial", ".lock"
_BYTES, _USES = ".bytes", "uses"
_KEY = re.compile(r"[0-9a-f]{64}")


class LayerUses:
    """Of this process, in a folder of layers. All methods raise OSError."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        """`limit_bytes`: what all layers may take; those in use stay, whatever they take."""
        self._folder, self._limit_bytes = folder, limit_bytes
        self._uses = folder / _USES
        self._record: int | None = None
        self._path = self._uses / f"{os.getpid()}-{secrets.token_hex(4)}"

    def take(self, key: str) -> bool:
        """Use a layer until `close`; False if it is not there."""
        with _locked(self._uses):
            if not (self._folder / key).is_dir():
                return False
            if self._record is None:
                self._record = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                fcntl.flock(self._record, fcntl.LOCK_EX)
            os.write(self._record, f"{key}\n".encode())
            return True

    def touch(self, keys: Iterable[str]) -> None:
        """They were used just now, in this order: the first ones go first."""
        for key in keys:
            os.utime(self._folder / key)

    def measure(self, key: str, folder: Path) -> int:
        """Bytes that the files of a layer take, remembered for when it is in place; `folder` is where they are."""
        size = sum(
            os.lstat(os.path.join(parent, name)).st_blocks * 512  # noqa: PTH118 (many thousands of files)
            for parent, _, names in os.walk(folder)  # what only a user of the sandboxes may read does not count
            for name in names
        )
        (self._folder / f"{key}{_BYTES}").write_text(str(size))
        return size

    def take_away(self) -> tuple[list[Path], int]:
        """Take away those that nobody uses, the least recently used first, until the others fit.

        Returns where they are now, to be removed, and the bytes that are still too many.
        """
        with _locked(self._uses):
            layers = [path for path in self._folder.iterdir() if _KEY.fullmatch(path.name)]
            sizes = {path: self._size(path) for path in layers}
            too_many = sum(sizes.values()) - self._limit_bytes
            taken: list[Path] = []
            if too_many > 0:
                in_use = _in_use(self._uses)
                for path in sorted(layers, key=lambda path: path.stat().st_mtime_ns):
                    if too_many > 0 and path.name not in in_use:
                        too_many -= sizes[path]
                        path.with_suffix(_BYTES).unlink(missing_ok=True)
                        taken.append(path.rename(path.with_suffix(f".{secrets.token_hex(4)}{PARTIAL}")))
            return taken, max(too_many, 0)

    def close(self) -> None:
        """Use none any more. Idempotent."""
        if self._record is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._record)
            self._record = None

    def _size(self, layer: Path) -> int:
        try:
            return int(layer.with_suffix(_BYTES).read_text())
        except (OSError, ValueError):
            return self.measure(layer.name, layer)


def forget_dead(folder: Path) -> None:
    """Remove the records of processes that are gone, of a folder of layers. Raises OSError."""
    if (folder / _USES).is_dir():
        with _locked(folder / _USES):
            _in_use(folder / _USES)


def _in_use(uses: Path) -> set[str]:
    """Keys in all records whose processes live; those of others are removed."""
    keys: set[str] = set()
    for path in uses.iterdir():
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            path.unlink()
        except BlockingIOError:
            keys |= set(path.read_text().split())
        finally:
            os.close(fd)
    return keys


@contextlib.contextmanager
def _locked(uses: Path) -> Iterator[None]:
    uses.mkdir(exist_ok=True)
    fd = os.open(uses, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
