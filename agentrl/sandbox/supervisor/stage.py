"""The supervisor's private view of the machine: all that the roots of sandboxes are put together from.

The supervisor has a mount namespace of its own, and in it a small file system, the stage, on a folder of the run. What
it mounts there no one else sees, and nothing of it outlives the supervisor: a process that is killed leaves no mount,
no layer and no loop device. Paths in this package are relative to the stage, its current folder: the options of an
overlay are shown inside sandboxes, and must tell nothing of the host.

Where the supervisor may not mount, it first becomes root of a user namespace of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.sandbox.supervisor import files, mounts, syscalls
from agentrl.sandbox.supervisor.merge import apply_layer
from agentrl.sandbox.supervisor.processes import fork_and_wait
from agentrl.sandbox.supervisor.userns import IdMap, enter_user_namespace, user_namespace

BASE = "base"
"""Layer at the bottom of every root."""
SYSTEM = "system"
"""The host's /usr, with the sandboxes' ids where the kernel can map them."""
ROOT = "root"
"""Where a process with a mount namespace of its own puts a root together."""
SKELETON = "skeleton"
"""The folders of /usr, as the sandboxes' root's: where the host's own are nobody's, only these can take new files."""
PRELOAD = "/etc/ld.so.preload"
"""A mount that is empty and cannot be written, or an agent could preload code of its own into the verifier."""
MAX_LAYERS = 50
"""The most layers of one root: mount options must fit in a page."""
_STAGE_BYTES = 64 << 20
_DISKS, _EMPTY = "disks/", "empty"
LAYER_PARTS = ("root", "usr")
"""Every layer has two trees: /usr is a file system of its own, because the host's is its lowest layer."""


class Disk:
    """The space that one sandbox may write: a file system of a fixed size, on which its layers lie."""

    def __init__(self, path: str, size_bytes: int, owner: int) -> None:
        """`owner`: id of the sandboxes' root. Raises OSError."""
        self._path, self._owner = path, owner
        self._numbers = itertools.count()
        self._users = 1
        Path(path).mkdir()
        try:
            mounts.mount("tmpfs", path, "tmpfs", mounts.MS_NOSUID | mounts.MS_NODEV, f"size={size_bytes},mode=0755")
            os.chown(path, owner, owner)
        except OSError:
            Path(path).rmdir()
            raise

    def use(self) -> None:
        """One more needs it."""
        self._users += 1

    def leave(self) -> None:
        """One fewer needs it; the last one unmounts it, and the kernel frees it when no overlay stands on it."""
        self._users -= 1
        if self._users == 0:
            with contextlib.suppress(OSError):  # the run's folder was removed, and the kernel unmounted the whole stage
                mounts.detach(self._path)
                Path(self._path).rmdir()

    def new_layer(self) -> str:
        """An empty layer, with the folders that an overlay works in. Raises OSError."""
        layer = f"{self._path}/{next(self._numbers)}"
        for folder in (
            layer,
            *(f"{layer}/{part}" for part in LAYER_PARTS),
            *(f"{layer}/work-{part}" for part in LAYER_PARTS),
        ):
            Path(folder).mkdir()
            os.chown(folder, self._owner, self._owner)
        return layer


@dataclass(frozen=True)
class Stack:
    """Sealed layers, the top one first, and the disks that they lie on."""

    layers: tuple[str, ...]
    disks: tuple[Disk, ...] = ()

    def use(self) -> Stack:
        """The same, once more needed."""
        for disk in self.disks:
            disk.use()
        return self

    def leave(self) -> None:
        for disk in self.disks:
            disk.leave()

    def trees(self, part: str) -> list[str]:
        """The folders of its layers that hold something of a part."""
        found = [f"{layer}/{part}" for layer in self.layers]
        return [tree for tree in found if tree == f"{BASE}/root" or _has_entries(tree)]


@dataclass(frozen=True)
class Ground:
    """What all sandboxes of this machine have in common."""

    folder: str
    """Absolute path of the stage."""
    place: str
    """Folder of the host that any user may pass: what lies there does not matter, a sandbox's root takes its place."""
    ids: IdMap
    userxattr: bool
    """Whether overlays are mounted in a user namespace, and keep their marks in attributes that it may write."""
    merged: tuple[str, ...]
    """Names in / that show a folder of /usr, like bin."""
    foreign_system: bool
    """Whether the files of the host's /usr are nobody's inside: no ids could be mapped."""


@dataclass
class Stage:
    """Makes and remembers what is on the stage."""

    ground: Ground
    _disks: Iterator[int] = field(default_factory=itertools.count)
    _attached: dict[str, str] = field(default_factory=dict)

    def base(self, entries: list[dict[str, Any]], content: bytes) -> None:
        """Make the base layer of these files, as `files.put` takes them. Raises OSError."""
        first = self.ground.ids.first
        for folder in (BASE, f"{BASE}/root"):
            Path(folder).mkdir()
            os.chown(folder, first, first)

        def fill() -> None:
            enter_user_namespace(self.ground.ids)
            os.chroot(f"{BASE}/root")
            os.chdir("/")
            os.umask(0o022)
            files.put([*entries, {"path": PRELOAD, "kind": "file", "mode": 0o644, "size": 0}], content)

        if not fork_and_wait(fill):
            raise OSError("the base of the sandboxes' files could not be made")

    def make_system_writable(self) -> None:
        """To be called before the first root with a writable /usr. Takes a second where its files are nobody's."""
        if not self.ground.foreign_system or Path(SKELETON).exists():
            return
        first = self.ground.ids.first
        for folder, names, _ in os.walk(SYSTEM):
            copy = Path(f"{SKELETON}/usr{folder.removeprefix(SYSTEM)}")
            copy.mkdir(parents=True)
            copy.chmod(stat.S_IMODE(Path(folder).lstat().st_mode))
            os.chown(copy, first, first)
            names[:] = [name for name in names if not Path(folder, name).is_symlink()]

    def disk(self, size_bytes: int) -> Disk:
        """A new disk with one user. Raises OSError."""
        return Disk(f"{_DISKS}{next(self._disks)}", size_bytes, self.ground.ids.first)

    def attach(self, folder: str) -> str:
        """Show a layer of the host's cache on the stage, once; its path there. Raises OSError."""
        if folder not in self._attached:
            name = f"layers/{len(self._attached)}"
            Path(name).mkdir()
            mounts.bind(folder, name)
            self._attached[folder] = name
        return self._attached[folder]


def enter_stage(folder: str, place: str, ids: IdMap, merged: tuple[str, ...], *, userxattr: bool) -> Stage:
    """Give this process a mount namespace with a stage on `folder`, and make the stage its current folder.

    The process is root of its user namespace. Raises OSError where the machine does not allow that.
    """
    syscalls.unshare(syscalls.CLONE_NEWNS)
    mounts.keep_to_ourselves()
    system = mounts.clone_tree("/usr", recursive=True)
    try:
        mounts.mount("tmpfs", folder, "tmpfs", mounts.MS_NOSUID | mounts.MS_NODEV, f"size={_STAGE_BYTES},mode=0711")
        os.chdir(folder)
        if userxattr:
            os.setxattr(".", "user.overlay.trial", b"y")  # an overlay without them cannot replace a folder
        Path(_EMPTY).touch()
        for name in (_DISKS, "layers", SYSTEM, ROOT):
            Path(name).mkdir()
        foreign = userxattr or not _map_ids(system, ids)
        mounts.attach(system, SYSTEM)
    finally:
        os.close(system)
    return Stage(Ground(folder, place, ids, userxattr, merged, foreign))


def assemble(ground: Ground, stack: Stack, layer: str, *, writable_system: bool) -> int:
    """Put a root together in the caller's own mount namespace; a descriptor of it. Raises OSError.

    `layer` takes what is written. /etc is a mount of its own, so that nobody inside can put another in its place.
    """
    _overlay(ground, ROOT, [*stack.trees("root")], f"{layer}/root", f"{layer}/work-root")
    lowers = [*stack.trees("usr"), SYSTEM]
    usr = f"{ROOT}/usr"
    if writable_system:
        lowers[-1:-1] = [f"{SKELETON}/usr"] if ground.foreign_system else []
        _overlay(ground, usr, lowers, f"{layer}/usr", f"{layer}/work-usr")
    elif len(lowers) > 1:
        _overlay(ground, usr, lowers, None, None)
    else:
        mounts.bind(SYSTEM, usr, recursive=True)
        mounts.make_read_only(usr)
    for name in ground.merged:
        mounts.bind(f"{usr}/{name}", f"{ROOT}/{name}")
        if not writable_system:
            mounts.make_read_only(f"{ROOT}/{name}")
    mounts.bind(f"{ROOT}/etc", f"{ROOT}/etc")
    mounts.bind(_EMPTY, f"{ROOT}{PRELOAD}")
    mounts.make_read_only(f"{ROOT}{PRELOAD}")
    return mounts.clone_tree(ROOT, recursive=True)


def become_root(ground: Ground, stack: Stack, layer: str, *, writable_system: bool) -> None:
    """Leave the stage: in a new mount namespace the ground's place is the sandbox's root. Raises OSError."""
    syscalls.unshare(syscalls.CLONE_NEWNS)
    root = assemble(ground, stack, layer, writable_system=writable_system)
    os.chdir("/")
    mounts.detach(ground.folder)  # or this sandbox's processes would hold the disks of all others
    mounts.attach(root, ground.place)
    os.close(root)


def flatten(stack: Stack, disk: Disk) -> Stack:
    """The same files in fewer layers: those of sandboxes become one, on `disk`. Raises OSError."""
    own = [layer for layer in stack.layers if layer.startswith(_DISKS)]
    layer = disk.new_layer()

    def merge() -> None:
        for lower in reversed(own):
            for part in LAYER_PARTS:
                apply_layer(f"{lower}/{part}", f"{layer}/{part}", link=True)

    if not fork_and_wait(merge):
        raise OSError("the layers of a snapshot could not be joined")
    return Stack((layer, *stack.layers[len(own) :]), (disk,))


def copy_layer(layer: str, target: str) -> None:
    """Copy both trees of a layer to the folder `target`, made before. Raises OSError."""
    for part in LAYER_PARTS:
        Path(target, part).mkdir(exist_ok=True)
        apply_layer(f"{layer}/{part}", f"{target}/{part}")


def _overlay(ground: Ground, target: str, lowers: list[str], upper: str | None, work: str | None) -> None:
    options = f"lowerdir={':'.join(lowers)}"
    if upper is not None:
        options += f",upperdir={upper},workdir={work}"
    # A sealed layer may still be the upper one of a mount that is not used any more: no index forbids that.
    options += ",userxattr" if ground.userxattr else ",index=off,metacopy=off,redirect_dir=nofollow"
    mounts.mount("overlay", target, "overlay", mounts.MS_NOSUID | mounts.MS_NODEV, options)


def _has_entries(folder: str) -> bool:
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        return next(entries, None) is not None
    return False


def _map_ids(mount_fd: int, ids: IdMap) -> bool:
    """Show the files of a mount as the sandboxes' own. False where the file system cannot: they are nobody's."""
    if not ids.ranged:
        return True  # its root is ours
    with contextlib.suppress(OSError), user_namespace(ids) as namespace:
        mounts.map_ids(mount_fd, namespace)
        return True
    return False
