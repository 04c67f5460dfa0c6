"""Starting one sandbox: a child in a user namespace of its own becomes bwrap, which starts the first process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from agentrl.sandbox.supervisor import seccomp, syscalls
from agentrl.sandbox.supervisor.cgroups import Cgroup
from agentrl.sandbox.supervisor.processes import close_other_fds, run_and_exit

INFO_FD = 3
"""bwrap writes the pid of the sandbox's first process here."""
EMPTY_FD = 4
"""Reads as an empty file."""
SECCOMP_FD = 5
"""Reads as the system call filter, where there is one."""


@dataclass(frozen=True)
class IdMap:
    """Host ids of the sandbox's user ids 0 to count - 1."""

    first: int
    count: int

    @property
    def ranged(self) -> bool:
        """Whether there are users beside root inside."""
        return self.count > 1


@dataclass(frozen=True)
class Launched:
    """A child on its way to be a sandbox, and the supervisor's ends of its pipes."""

    pid: int
    info_fd: int
    up_fd: int
    """Readable when the sandbox's first process runs, at its end when that failed."""
    stderr_fd: int


def launch(argv: list[str], ids: IdMap, cgroup: Cgroup, filter_program: bytes) -> Launched:
    """Fork the child, behind `filter_program` if that is not empty.

    It never returns into our code: it is bwrap, or it exits with the reason on its stderr.
    """
    info, up, stderr = os.pipe(), os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        fds = {"info": info[1], "up": up[1], "stderr": stderr[1]}
        run_and_exit(lambda: _become_bwrap(argv, ids, cgroup, filter_program, **fds))
    for _, write_end in (info, up, stderr):
        os.close(write_end)
    return Launched(pid, info[0], up[0], stderr[0])


def try_out() -> None:
    """Entry of a trial process. Arguments: first id, number of ids, and a bwrap command; it ends as that does."""
    first, count, *argv = sys.argv[1:]
    try:
        _enter_user_namespace(IdMap(int(first), int(count)))
        os.execve(argv[0], argv, {"PATH": "/usr/bin:/bin"})
    except OSError as error:
        sys.exit(str(error))


def _become_bwrap(
    argv: list[str], ids: IdMap, cgroup: Cgroup, filter_program: bytes, *, info: int, up: int, stderr: int
) -> None:
    os.dup2(stderr, 2)
    try:
        syscalls.default_signals()
        cgroup.join()
        supervisor = os.getppid()
        _enter_user_namespace(ids)
        syscalls.die_with_parent(signal.SIGKILL)
        if os.getppid() != supervisor:
            return
        _place_fds(info, up, filter_program)
        os.chdir("/")
        os.execve(argv[0], argv, {"PATH": "/usr/bin:/bin"})
    except OSError as error:
        os.write(2, f"{error}\n".encode())
        raise


def _place_fds(info: int, up: int, filter_program: bytes) -> None:
    """Put the descriptors where bwrap's arguments expect them; everything else closes."""
    null = os.open(os.devnull, os.O_RDONLY)
    sources = (null, up, info, null, seccomp.program_fd(filter_program))
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in sources]
    for target, fd in zip((0, 1, INFO_FD, EMPTY_FD, SECCOMP_FD), high, strict=True):
        os.dup2(fd, target)
    close_other_fds((0, 1, 2, INFO_FD, EMPTY_FD, SECCOMP_FD))


def _enter_user_namespace(ids: IdMap) -> None:
    """Become root of a new user namespace that maps `ids`, in which no further user namespace can be made."""
    if ids.ranged:
        _unshare_with_range(ids)
        os.setgroups([])
    else:
        group = os.getegid()
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"0 {ids.first} 1")
        _write("/proc/self/gid_map", f"0 {group} 1")
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    with contextlib.suppress(OSError):  # where /proc/sys is read-only: no_new_privs and dropped capabilities still hold
        _write("/proc/sys/user/max_user_namespaces", "0")


def _unshare_with_range(ids: IdMap) -> None:
    """Enter a new user namespace whose map a helper writes: only a process outside has the right to map a range."""
    me = os.getpid()
    ready_read, ready_write = os.pipe()
    helper = os.fork()
    if helper == 0:
        os.close(ready_write)
        run_and_exit(lambda: _write_maps(me, ids, ready_read))
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    os.close(ready_write)
    if os.waitpid(helper, 0)[1] != 0:
        raise PermissionError(f"cannot map user ids {ids.first} to {ids.first + ids.count - 1}")


def _write_maps(pid: int, ids: IdMap, ready: int) -> None:
    os.read(ready, 1)  # returns at the end of file, when the namespace is there
    line = f"0 {ids.first} {ids.count}"
    _write(f"/proc/{pid}/uid_map", line)
    _write(f"/proc/{pid}/gid_map", line)


def _write(path: str, text: str) -> None:
    Path(path).write_text(text)
