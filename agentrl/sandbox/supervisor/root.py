"""The root of one sandbox: sealed layers, and upon them one that is written; how it is sealed, copied and exchanged."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from agentrl.sandbox.supervisor import mounts, syscalls
from agentrl.sandbox.supervisor.merge import flush
from agentrl.sandbox.supervisor.stage import (
    MAX_LAYERS,
    PRELOAD,
    Stack,
    Stage,
    assemble,
    become_root,
    copy_layer,
    flatten,
)


class Root:
    """Holds its disk and those of the layers below it, until it is closed."""

    def __init__(self, stage: Stage, below: Stack, *, size_bytes: int, writable_system: bool) -> None:
        """`below` are the sealed layers, `size_bytes` what may be written upon them. Raises OSError."""
        self._stage, self._size_bytes, self._writable_system = stage, size_bytes, writable_system
        self._stack = below.use()
        try:
            self._disk = stage.disk(size_bytes)
        except OSError:
            below.leave()
            raise
        self._layer = self._disk.new_layer()

    def enter(self) -> None:
        """In a child: have it as the folder of the stage, in a mount namespace of its own. Raises OSError."""
        become_root(self._stage.ground, self._stack, self._layer, writable_system=self._writable_system)

    def close(self) -> None:
        self._stack.leave()
        self._disk.leave()

    def exchange(self, first_pid: int, pidfd: int) -> tuple[Callable[[], None], Callable[[], Stack]]:
        """Seal the written layer and give the sandbox a fresh one upon it, while nothing in the sandbox runs.

        (what a helper process does, what is to be done when it succeeded: gives the sealed layers, in use). Raises
        OSError.
        """
        disks = tuple(dict.fromkeys((self._disk, *self._stack.disks)))
        sealed = Stack((self._layer, *self._stack.layers), disks)
        if len(sealed.layers) > MAX_LAYERS:
            sealed = flatten(sealed, self._disk)
        layer = self._disk.new_layer()
        ground, writable = self._stage.ground, self._writable_system

        def swap() -> None:
            others = _other_mounts(
                first_pid, assembled=("/", "/usr", "/etc", PRELOAD, *(f"/{name}" for name in ground.merged))
            )
            syscalls.unshare(syscalls.CLONE_NEWNS)
            root = assemble(ground, sealed, layer, writable_system=writable)
            _put_in_place(root, others, pidfd)

        def done() -> Stack:
            before, self._stack, self._layer = self._stack, sealed.use(), layer
            before.leave()
            return sealed.use()

        return swap, done

    def copy(self) -> tuple[Callable[[], None], Callable[[bool], Stack]]:
        """Copy the written layer as it is, while the sandbox stands still.

        (what a helper process does, what is to be done then: whether it succeeded in, the layers out). Raises OSError.
        """
        disk = self._stage.disk(self._size_bytes)
        layer = disk.new_layer()
        source, below = self._layer, self._stack.use()
        disks = tuple(dict.fromkeys((disk, *below.disks)))

        def done(succeeded: bool) -> Stack:
            stack = Stack((layer, *below.layers), disks)
            if not succeeded:
                stack.leave()
            return stack

        return lambda: copy_layer(source, layer), done

    def export(self, target: str) -> Callable[[], None]:
        """What a helper process does to copy the written layer to a folder of the host, that is there and empty."""
        layer = os.path.realpath(self._layer)

        def body() -> None:
            copy_layer(layer, target)
            flush(target)

        return body


def _put_in_place(root: int, others: list[str], pidfd: int) -> None:
    """Make a root that is attached nowhere that of a sandbox's processes, with the other mounts of the old one."""
    syscalls.setns(pidfd, syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    moved = [(path, mounts.clone_tree(path, recursive=True)) for path in others]
    mounts.attach(root, "/")
    os.fchdir(root)
    for path, fd in moved:
        mounts.attach(fd, f".{path}")
    mounts.pivot_root(".", ".")
    mounts.detach(".")


def _other_mounts(pid: int, *, assembled: tuple[str, ...]) -> list[str]:
    """Where a process sees mounts that lie directly on those of `assembled`, but are none of them."""
    lines = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
    own = {fields[0] for fields in lines if fields[4] in assembled}
    return [fields[4] for fields in lines if fields[1] in own and fields[0] not in own]
