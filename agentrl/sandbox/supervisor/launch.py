"""Starting one sandbox: a child in a user namespace of its own becomes bwrap, which starts the first process."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from agentrl.sandbox.supervisor import seccomp, syscalls
from agentrl.sandbox.supervisor.cgroups import Cgroup
from agentrl.sandbox.supervisor.processes import close_other_fds, run_and_exit
from agentrl.sandbox.supervisor.userns import IdMap, enter_user_namespace

INFO_FD = 3
"""bwrap writes the pid of the sandbox's first process here."""
EMPTY_FD = 4
"""Reads as an empty file."""
SECCOMP_FD = 5
"""Reads as the system call filter, where there is one."""


@dataclass(frozen=True)
class Launched:
    """A child on its way to be a sandbox, and the supervisor's ends of its pipes."""

    pid: int
    info_fd: int
    up_fd: int
    """Readable when the sandbox's first process runs, at its end when that failed."""
    stderr_fd: int


def launch(
    argv: list[str], ids: IdMap, cgroup: Cgroup, filter_program: bytes, enter_root: Callable[[], None] | None
) -> Launched:
    """Fork the child, behind `filter_program` if that is not empty; `enter_root` gives it its files, else bwrap does.

    It never returns into our code: it is bwrap, or it exits with the reason on its stderr.
    """
    info, up, stderr = os.pipe(), os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        fds = {"info": info[1], "up": up[1], "stderr": stderr[1]}
        run_and_exit(lambda: _become_bwrap(argv, ids, cgroup, filter_program, enter_root, **fds))
    for _, write_end in (info, up, stderr):
        os.close(write_end)
    return Launched(pid, info[0], up[0], stderr[0])


def _become_bwrap(
    argv: list[str],
    ids: IdMap,
    cgroup: Cgroup,
    filter_program: bytes,
    enter_root: Callable[[], None] | None,
    *,
    info: int,
    up: int,
    stderr: int,
) -> None:
    os.dup2(stderr, 2)
    try:
        syscalls.default_signals()
        cgroup.join()
        supervisor = os.getppid()
        if enter_root is not None:
            enter_root()
        enter_user_namespace(ids)
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
