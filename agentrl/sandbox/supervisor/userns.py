"""User namespaces: that of each sandbox, and the one that a supervisor without rights makes for itself."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from agentrl.sandbox.supervisor import syscalls
from agentrl.sandbox.supervisor.processes import run_and_exit

_RANGE_COUNT = 65536


@dataclass(frozen=True)
class IdMap:
    """Ids, as the supervisor sees them, of the sandbox's user ids 0 to count - 1."""

    first: int
    count: int

    @property
    def ranged(self) -> bool:
        """Whether there are users beside root inside."""
        return self.count > 1


class Standing(StrEnum):
    """How the supervisor comes to be root."""

    ROOT = "root"
    """It is."""
    SUBUID = "subuid"
    """In a user namespace with its own id as root and the range of /etc/subuid, mapped by newuidmap and newgidmap."""
    SINGLE = "single"
    """In a user namespace that has its own id as root, and no other."""
    NONE = "none"
    """It is not: it can make sandboxes, and mount nothing."""


def take_standing(standing: Standing) -> None:
    """Become root as that says. Raises OSError."""
    if standing is Standing.SINGLE:
        _unshare_alone(os.geteuid())
    elif standing is Standing.SUBUID:
        uid, gid, count = os.geteuid(), os.getegid(), str(_RANGE_COUNT - 1)
        first_uid, first_gid = subordinate("/etc/subuid"), subordinate("/etc/subgid")
        if first_uid is None or first_gid is None:
            raise PermissionError("no range of ids in /etc/subuid and /etc/subgid")

        def write(pid: int) -> None:
            for program, own, first in (("newuidmap", uid, first_uid), ("newgidmap", gid, first_gid)):
                argv = [program, str(pid), "0", str(own), "1", "1", str(first), count]
                if os.spawnvp(os.P_WAIT, program, argv) != 0:
                    raise PermissionError(f"{program} refused")

        _unshare_with(write, "cannot map the ids of /etc/subuid")
    if standing in (Standing.SINGLE, Standing.SUBUID):
        _be_root()


def subordinate(path: str) -> int | None:
    """First id of a range in /etc/subuid or /etc/subgid that is ours and large enough; None without one."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        owner, _, rest = line.partition(":")
        first, _, count = rest.partition(":")
        if owner in _own_names() and first.isdigit() and count.isdigit() and int(count) >= _RANGE_COUNT - 1:
            return int(first)
    return None


def map_range(pid: int, ids: IdMap) -> None:
    """Map `ids` into the new user namespace of a child. Raises OSError."""
    # Two lines: root may be mapped apart from the others in our own namespace, and a line cannot span both.
    lines = f"0 {ids.first} 1\n1 {ids.first + 1} {ids.count - 1}"
    Path(f"/proc/{pid}/uid_map").write_text(lines)
    Path(f"/proc/{pid}/gid_map").write_text(lines)


def enter_user_namespace(ids: IdMap, *, ask: Callable[[], bool] | None = None) -> None:
    """Become root of a new user namespace that maps `ids`, in which no further user namespace can be made.

    `ask` has a process outside call `map_range`, and says whether that succeeded; None forks one that does.
    """
    if ids.ranged:
        problem = f"cannot map user ids {ids.first} to {ids.first + ids.count - 1}"
        if ask is None:
            _unshare_with(lambda pid: map_range(pid, ids), problem)
        else:
            syscalls.unshare(syscalls.CLONE_NEWUSER)
            if not ask():
                raise PermissionError(problem)
        os.setgroups([])
    else:
        _unshare_alone(ids.first)
    _be_root()
    with contextlib.suppress(OSError):  # where /proc/sys is read-only: no_new_privs and dropped capabilities still hold
        Path("/proc/sys/user/max_user_namespaces").write_text("0")


@contextlib.contextmanager
def user_namespace(ids: IdMap) -> Iterator[int]:
    """A descriptor of a user namespace that maps `ids`. Raises OSError."""
    ready_read, ready_write = os.pipe()
    holder = os.fork()
    if holder == 0:

        def body() -> None:
            enter_user_namespace(ids)
            os.write(ready_write, b"x")
            signal.pause()

        run_and_exit(body)
    os.close(ready_write)
    try:
        if not os.read(ready_read, 1):
            raise PermissionError(f"cannot map user ids {ids.first} to {ids.first + ids.count - 1}")
        namespace = os.open(f"/proc/{holder}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield namespace
        finally:
            os.close(namespace)
    finally:
        os.close(ready_read)
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)


def _be_root() -> None:
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def _unshare_alone(uid: int) -> None:
    """Enter a new user namespace in which `uid` and our own group are root."""
    group = os.getegid()
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def _unshare_with(write: Callable[[int], None], problem: str) -> None:
    """Enter a new user namespace whose map a helper writes: only a process outside has the right to map a range."""
    me = os.getpid()
    ready_read, ready_write = os.pipe()
    helper = os.fork()
    if helper == 0:
        os.close(ready_write)

        def body() -> None:
            os.read(ready_read, 1)  # returns at the end of file, when the namespace is there
            write(me)

        run_and_exit(body)
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    os.close(ready_write)
    os.close(ready_read)
    if os.waitpid(helper, 0)[1] != 0:
        raise PermissionError(problem)


def _own_names() -> tuple[str, ...]:
    """How /etc/subuid may call us: by number, or as /etc/passwd does."""
    uid = str(os.getuid())
    names = [uid]
    with contextlib.suppress(OSError):
        for line in Path("/etc/passwd").read_text(errors="replace").splitlines():
            fields = line.split(":")
            if len(fields) == 7 and fields[2] == uid:
                names.append(fields[0])
    return tuple(names)
