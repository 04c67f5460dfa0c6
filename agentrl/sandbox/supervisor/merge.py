"""Copying the layers of an overlay: what a layer changes, applied to a folder that may hold lower layers already.

A whiteout (character device 0, 0) stands for a name that was removed, the attribute `opaque` of a folder for all that
was below it (kernel: Documentation/filesystems/overlayfs.rst). The layers must stand still meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
from collections.abc import Callable

_CHUNK_BYTES = 1 << 24
_OVERLAY = ("trusted.overlay.", "user.overlay.")
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")

_libc = ctypes.CDLL(None, use_errno=True)


def apply_layer(source: str, target: str, *, link: bool = False) -> None:
    """Make `target`, a folder, what it is with the layer `source` upon it. Raises OSError.

    Owners, modes, times, attributes, holes and names of one file are kept; sockets are left out. `link`: files become
    further names of the layer's own, where both lie on one file system, instead of copies.
    """
    _Merge(link).folder(source, target)


def flush(path: str) -> None:
    """Have the file system of `path` on its disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.syncfs(fd) == -1:
            number = ctypes.get_errno()
            raise OSError(number, f"syncfs {path}: {os.strerror(number)}")
    finally:
        os.close(fd)


def remove(path: str) -> None:
    """Remove whatever is at `path`; a link is removed, not followed. Raises OSError if it stays."""
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return
    except FileNotFoundError:
        return
    with os.scandir(path) as entries:
        names = [entry.name for entry in entries]
    for name in names:
        remove(f"{path}/{name}")
    os.rmdir(path)


class _Merge:
    """One application; remembers files that have several names."""

    def __init__(self, link: bool) -> None:
        self._link = link
        self._names: dict[tuple[int, int], str] = {}

    def folder(self, source: str, target: str) -> None:
        with os.scandir(source) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            self._entry(f"{source}/{name}", f"{target}/{name}")
        _copy_attributes(source, target, os.lstat(source))

    def _entry(self, source: str, target: str) -> None:
        info = os.lstat(source)
        if stat.S_ISDIR(info.st_mode):
            if _is_opaque(source) or not _is_folder(target):
                remove(target)
                os.mkdir(target)
            self.folder(source, target)
            return
        remove(target)
        make = self._maker(info)
        if make is not None:
            make(source, target, info)

    def _maker(self, info: os.stat_result) -> Callable[[str, str, os.stat_result], None] | None:
        kind = stat.S_IFMT(info.st_mode)
        if kind == stat.S_IFREG:
            return self._file
        if kind == stat.S_IFLNK:
            return _symlink
        return None if kind == stat.S_IFSOCK else _node

    def _file(self, source: str, target: str, info: os.stat_result) -> None:
        key = (info.st_dev, info.st_ino)
        if self._link:
            try:
                os.link(source, target, follow_symlinks=False)
                return
            except OSError:
                pass  # on another file system, or with too many names: copied
        if key in self._names:
            os.link(self._names[key], target, follow_symlinks=False)
            return
        if info.st_nlink > 1:
            self._names[key] = target
        _copy_file(source, target, info.st_size)
        _copy_attributes(source, target, info)


def _symlink(source: str, target: str, info: os.stat_result) -> None:
    os.symlink(os.readlink(source), target)
    os.lchown(target, info.st_uid, info.st_gid)


def _node(source: str, target: str, info: os.stat_result) -> None:
    """A pipe, or a whiteout: sandboxes can make no other devices."""
    os.mknod(target, info.st_mode, info.st_rdev)
    os.lchown(target, info.st_uid, info.st_gid)


def _copy_file(source: str, target: str, size: int) -> None:
    """The contents without the holes: a sparse file must not grow."""
    reading = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.truncate(writing, size)
        offset = 0
        while offset < size:
            try:
                offset = os.lseek(reading, offset, os.SEEK_DATA)
            except OSError:
                break  # ENXIO: only a hole is left
            end = os.lseek(reading, offset, os.SEEK_HOLE)
            os.lseek(writing, offset, os.SEEK_SET)
            while offset < end:
                sent = os.sendfile(writing, reading, offset, min(_CHUNK_BYTES, end - offset))
                if sent == 0:
                    return  # it became shorter
                offset += sent
    finally:
        os.close(reading)
        os.close(writing)


def _copy_attributes(source: str, target: str, info: os.stat_result) -> None:
    os.lchown(target, info.st_uid, info.st_gid)
    os.chmod(target, stat.S_IMODE(info.st_mode))
    with contextlib.suppress(OSError):  # a file system without attributes has none to copy
        for name in os.listxattr(source):
            if name in _OPAQUE or not name.startswith(_OVERLAY):
                os.setxattr(target, name, os.getxattr(source, name))
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))


def _is_opaque(path: str) -> bool:
    for name in _OPAQUE:
        with contextlib.suppress(OSError):
            return os.getxattr(path, name) == b"y"
    return False


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False
