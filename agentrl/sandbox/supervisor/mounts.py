"""The Linux calls that mount file systems, as far as sandboxes need them. All raise OSError.

The newer ones (a mount held by a descriptor, with mapped ids) need Linux 5.12.
"""

from __future__ import annotations

import ctypes
import os
import platform

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_SLAVE = 1, 2, 4, 32, 0x1000, 0x4000, 0x80000
_MNT_DETACH = 2
_OPEN_TREE_CLONE = 1
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MOUNT_ATTR_IDMAP = 0x100000

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
"""The same numbers on every architecture: they came after the tables were joined."""
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """mount(2). `options` fit in one page, or the kernel would cut them."""
    if len(options) >= os.sysconf("SC_PAGE_SIZE"):
        raise OSError(7, f"mount options of {len(options)} bytes do not fit in a page")
    encoded = None if kind is None else kind.encode()
    result = _libc.mount(source.encode(), target.encode(), encoded, ctypes.c_ulong(flags), options.encode())
    _check(result, f"mount {kind or 'bind'} on {target}")


def bind(source: str, target: str, *, recursive: bool = False) -> None:
    """Show `source` at `target` too."""
    mount(source, target, None, MS_BIND | (MS_REC if recursive else 0))


def make_read_only(path: str) -> None:
    """Let nothing be written through the mount at `path`."""
    mount("none", path, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def keep_to_ourselves() -> None:
    """Let no mount of this namespace reach another; what is unmounted there goes here too."""
    mount("none", "/", None, MS_SLAVE | MS_REC)


def detach(path: str) -> None:
    """Unmount what lies at `path`, and what lies on that, whoever uses it."""
    _check(_libc.umount2(path.encode(), _MNT_DETACH), f"umount {path}")


def clone_tree(path: str, *, recursive: bool = False) -> int:
    """A descriptor of a copy of the mount at `path`, attached nowhere."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | (_AT_RECURSIVE if recursive else 0)
    return _check(_libc.syscall(_OPEN_TREE, _AT_FDCWD, path.encode(), flags), f"open_tree {path}")


def attach(fd: int, target: str) -> None:
    """Put a mount that is attached nowhere at `target`."""
    result = _libc.syscall(_MOVE_MOUNT, fd, b"", _AT_FDCWD, target.encode(), _MOVE_MOUNT_F_EMPTY_PATH)
    _check(result, f"move_mount to {target}")


def map_ids(fd: int, user_namespace_fd: int) -> None:
    """Show the files of a mount that is attached nowhere with the ids that a user namespace gives theirs."""
    attributes = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_IDMAP, 0, 0, user_namespace_fd)
    result = _libc.syscall(_MOUNT_SETATTR, fd, b"", _AT_EMPTY_PATH, attributes, ctypes.sizeof(attributes))
    _check(result, "mount_setattr")


def pivot_root(new_root: str, put_old: str) -> None:
    """pivot_root(2): every process of this namespace whose root was the old one gets the new one."""
    number = _PIVOT_ROOT[platform.machine()]
    _check(_libc.syscall(number, new_root.encode(), put_old.encode()), f"pivot_root {new_root}")
