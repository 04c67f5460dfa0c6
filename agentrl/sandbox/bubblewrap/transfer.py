"""Files between host and sandbox: what an upload sends piece by piece, and where a download may write.

Inside, the door opens files with the sandbox's root folder and rights. Out here nothing that comes from a sandbox is
trusted: a download makes folders and regular files below one new folder, and never a link, device or setuid bit.
"""

from __future__ import annotations

import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

PIECE_BYTES = 4 << 20
"""Contents of at most about so many bytes travel in one message."""
MAX_UPLOAD_BYTES = 64 << 20


@dataclass
class Upload:
    """Files on their way into a sandbox: entries as the supervisor's `put` wants them, all contents in their order."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    content: bytes = b""


def pack(source: Path, target: str) -> Upload:
    """A host file or folder as one upload to `target`. Raises as `pieces` does."""
    whole = Upload()
    for piece in pieces(source, target):
        whole.entries += piece.entries
        whole.content += piece.content
    return whole


def pieces(source: Path, target: str) -> Iterator[Upload]:
    """A host file or folder as uploads to `target`, in order. Links inside stay links.

    Raises OSError if it cannot be read; before the first piece ValueError over MAX_UPLOAD_BYTES or for a device, socket
    or pipe.
    """
    found = list(_walk(source, target.rstrip("/") or "/"))
    if sum(_size(path) for path, _ in found) > MAX_UPLOAD_BYTES:
        raise ValueError(f"{source}: more than {MAX_UPLOAD_BYTES >> 20} MiB to upload")
    piece = Upload()
    for path, inside in found:
        for entry, data in _entries(path, inside):
            piece.entries.append(entry)
            piece.content += data
            if len(piece.content) >= PIECE_BYTES:
                yield piece
                piece = Upload()
    yield piece


def _entries(path: Path, inside: str) -> Iterator[tuple[dict[str, Any], bytes]]:
    """One entry, or several for a large file, each with its part of the contents."""
    info = path.lstat()
    mode = stat.S_IMODE(info.st_mode)
    if stat.S_ISLNK(info.st_mode):
        yield {"path": inside, "kind": "link", "target": str(path.readlink())}, b""
    elif stat.S_ISDIR(info.st_mode):
        yield {"path": inside, "kind": "dir", "mode": mode}, b""
    else:
        with path.open("rb") as file:
            data = file.read(PIECE_BYTES)
            yield {"path": inside, "kind": "file", "mode": mode, "size": len(data)}, data
            while data := file.read(PIECE_BYTES):
                yield {"path": inside, "kind": "more", "size": len(data)}, data


def _size(path: Path) -> int:
    """Bytes of contents to send."""
    info = path.lstat()
    if stat.S_ISLNK(info.st_mode) or stat.S_ISDIR(info.st_mode):
        return 0
    if not stat.S_ISREG(info.st_mode):
        raise ValueError(f"{path}: neither file, folder nor link")
    return info.st_size


def _walk(source: Path, target: str) -> Iterator[tuple[Path, str]]:
    """Parents first, in the order of names."""
    yield source, target
    if source.is_dir() and not source.is_symlink():
        for child in sorted(source.iterdir()):
            yield from _walk(child, f"{target.rstrip('/')}/{child.name}")


@dataclass(frozen=True)
class Listed:
    """A file or folder as the sandbox lists it; `path` is relative to what was asked for, '' for that itself."""

    path: str
    is_folder: bool
    mode: int
    size: int


def destination(target: Path, listed: Listed) -> Path:
    """Where it goes on the host: `target` or something below it. Raises ValueError for a path that leads elsewhere."""
    inside = PurePosixPath(listed.path)
    if inside.is_absolute() or ".." in inside.parts or "\0" in listed.path:
        raise ValueError(f"a sandbox lists a path that leads out of it: {listed.path!r}")
    return target / inside


def make(path: Path, listed: Listed) -> None:
    """An empty file or folder that was not there, ours to read and write, without setuid bits. Raises OSError."""
    if listed.is_folder:
        path.mkdir()
        path.chmod(0o700 | listed.mode & 0o755)
    else:
        path.touch(exist_ok=False)
        path.chmod(0o600 | listed.mode & 0o755)


def remove(target: Path) -> None:
    """What a download has made so far. Raises OSError."""
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)
