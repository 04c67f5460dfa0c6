"""Files of a sandbox, handled by its door: a process with its root folder and its root's rights, never the host's."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.sandbox.supervisor.processes import write_all

_CHUNK_BYTES = 1 << 20
_MAX_DEPTH = 100
_MAX_SKIPPED = 100


def put(entries: list[dict[str, Any]], content: bytes) -> None:
    """Make directories, files and links. Raises OSError.

    `entries` have path and kind (dir, file, more, link, name); a mode (None leaves a directory that is there as it is),
    the size of a file or of what goes on at its end (more), the target of a link or of a further name; perhaps a uid,
    and a gid if it is another number. `content` is that of all files, in their order.
    """
    offset = 0
    for entry in entries:
        path, kind = entry["path"], entry["kind"]
        if kind == "dir":
            Path(path).mkdir(parents=True, exist_ok=True)
            _give(entry)
            if entry["mode"] is not None:
                Path(path).chmod(entry["mode"])
            continue
        if kind == "more":
            _append(path, content[offset : offset + entry["size"]])
            offset += entry["size"]
            continue
        with contextlib.suppress(FileNotFoundError):
            Path(path).unlink()  # never write through a link, nor into a file that has other names
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        if kind == "link":
            Path(path).symlink_to(entry["target"])
            _give(entry)
        elif kind == "name":
            _further_name(path, entry["target"])
        else:
            _write_new(path, content[offset : offset + entry["size"]], entry["mode"])
            _give(entry)
            offset += entry["size"]


def _further_name(path: str, target: str) -> None:
    """A hard link; a copy where one of the two lies on another mount, as all in /etc does."""
    try:
        Path(path).hardlink_to(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        info = os.lstat(target)
        _write_new(path, Path(target).read_bytes(), stat.S_IMODE(info.st_mode))
        os.chown(path, info.st_uid, info.st_gid)


def _give(entry: dict[str, Any]) -> None:
    """Make it its owner's. The set-id bits of a file go with that, as they do for a command."""
    if "uid" in entry and (entry["uid"], entry.get("gid", entry["uid"])) != (0, 0):
        os.chown(entry["path"], entry["uid"], entry.get("gid", entry["uid"]), follow_symlinks=False)


def get(path: str, offset: int, max_bytes: int) -> tuple[int, bytes] | None:
    """(size, at most max_bytes of content from `offset`) of a regular file; None if there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            return None
        os.lseek(fd, offset, os.SEEK_SET)
        data = b""
        while len(data) <= max_bytes and (chunk := os.read(fd, _CHUNK_BYTES)):
            data += chunk
        return max(info.st_size, offset + len(data)), data[:max_bytes]
    finally:
        os.close(fd)


@dataclass
class Listing:
    """Regular files and folders below a path, parents first: [relative path, is a folder, mode, size]."""

    entries: list[tuple[str, bool, int, int]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """What is neither: links, devices, sockets, pipes; the first few."""
    more: bool = False
    """There are more than were asked for, or they lie too deep."""


def listing(path: str, max_entries: int) -> Listing | None:
    """A file, or a folder with what is below. `path` is followed if it is a link, links below are not.

    None if it is neither or not there. Raises OSError.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    found = Listing()
    try:
        info = os.fstat(fd)
        _list(found, "", info, max_entries)
        if not found.entries:
            return None
        if stat.S_ISDIR(info.st_mode):
            _list_folder(found, "", fd, max_entries, depth=0)
    finally:
        os.close(fd)
    return found


def _list_folder(found: Listing, folder: str, fd: int, max_entries: int, *, depth: int) -> None:
    with os.scandir(fd) as entries:
        names = [entry.name for entry in itertools.islice(entries, max_entries + 1)]
    for name in sorted(names):
        path = f"{folder}{name}"
        info = os.stat(name, dir_fd=fd, follow_symlinks=False)
        _list(found, path, info, max_entries)
        if stat.S_ISDIR(info.st_mode) and not found.more:
            if depth == _MAX_DEPTH:
                found.more = True
                return
            child = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            try:
                _list_folder(found, f"{path}/", child, max_entries, depth=depth + 1)
            finally:
                os.close(child)
        if found.more:
            return


def _list(found: Listing, path: str, info: os.stat_result, max_entries: int) -> None:
    is_folder = stat.S_ISDIR(info.st_mode)
    if not is_folder and not stat.S_ISREG(info.st_mode):
        if len(found.skipped) < _MAX_SKIPPED:
            found.skipped.append(path)
    elif len(found.entries) == max_entries:
        found.more = True
    else:
        found.entries.append((path, is_folder, stat.S_IMODE(info.st_mode), 0 if is_folder else info.st_size))


def clear(path: str, mode: int) -> None:
    """Make `path` an empty directory, whatever it was; links are removed, not followed. Raises OSError."""
    if Path(path).is_symlink() or (Path(path).exists() and not Path(path).is_dir()):
        Path(path).unlink()
    Path(path).mkdir(parents=True, exist_ok=True)
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(top, mode)
        _empty(top)
    finally:
        os.close(top)


def _empty(top: int) -> None:
    """Remove all in the directory `top`. Subdirectories are moved up to it first: no tree is too deep for that."""
    waiting = _remove_files(top)
    taken = frozenset(waiting)
    fresh = (new for new in map(".emptied-{}".format, itertools.count()) if new not in taken)
    while waiting:
        name = waiting.pop()
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
        try:
            for child in _remove_files(folder):
                waiting.append(next(fresh))
                os.rename(child, waiting[-1], src_dir_fd=folder, dst_dir_fd=top)
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=top)


def _remove_files(folder: int) -> list[str]:
    """Remove all but subdirectories from a directory. Returns the names of these."""
    with os.scandir(folder) as found:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
    for name, is_folder in entries:
        if not is_folder:
            os.unlink(name, dir_fd=folder)
    return [name for name, is_folder in entries if is_folder]


def _append(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        write_all(fd, data)
    finally:
        os.close(fd)


def _write_new(path: str, data: bytes, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, data)
        os.fchmod(fd, mode)
    finally:
        os.close(fd)
