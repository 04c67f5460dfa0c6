"""Starting one sandbox: a child in a user namespace of its own becomes bwrap, which starts the first process.

Only a process outside can map ids into that namespace: the supervisor does, as soon as the child says that it is there.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from agentrl.sandbox.supervisor import first_process, seccomp, syscalls
from agentrl.sandbox.supervisor.cgroups import Cgroup
from agentrl.sandbox.supervisor.processes import close_other_fds, run_and_exit
from agentrl.sandbox.supervisor.userns import IdMap, enter_user_namespace

INFO_FD = 3
"""bwrap writes the pid of the sandbox's first process here."""
EMPTY_FD = 4
"""Reads as an empty file."""
SECCOMP_FD = 5
"""Reads as the system call filter, where there is one."""
_PROGRAM_FD = 6
"""The program of the first process."""
WANTS_IDS = b"?"
"""What `up_fd` reads when the child waits for the ids of its namespace."""


@dataclass(frozen=True)
class Launched:
    """A child on its way to be a sandbox, and the supervisor's ends of its pipes."""

    pid: int
    info_fd: int
    up_fd: int
    """Readable when it wants its ids, and when the sandbox's first process runs; at its end when that failed."""
    ids_fd: int
    """Takes one byte when the ids are mapped."""
    stderr_fd: int

    @property
    def fds(self) -> tuple[int, int, int, int]:
        """All of them."""
        return self.info_fd, self.up_fd, self.ids_fd, self.stderr_fd


def launch(
    argv: list[str], ids: IdMap, cgroup: Cgroup, filter_program: bytes, enter_root: Callable[[], None] | None
) -> Launched:
    """Fork the child, behind `filter_program` if that is not empty; `enter_root` gives it its files, else bwrap does.

    `argv` is that of bwrap, up to the command that it runs.

    It never returns into our code: it is bwrap, or it exits with the reason on its stderr.
    """
    info, up, mapped, stderr = os.pipe(), os.pipe(), os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(mapped[1])  # or nothing would end the wait for a supervisor that is gone
        fds = {"info": info[1], "up": up[1], "mapped": mapped[0], "stderr": stderr[1]}
        run_and_exit(lambda: _become_bwrap(argv, ids, cgroup, filter_program, enter_root, **fds))
    for fd in (info[1], up[1], mapped[0], stderr[1]):
        os.close(fd)
    return Launched(pid, info[0], up[0], mapped[1], stderr[0])


def _become_bwrap(
    argv: list[str],
    ids: IdMap,
    cgroup: Cgroup,
    filter_program: bytes,
    enter_root: Callable[[], None] | None,
    *,
    info: int,
    up: int,
    mapped: int,
    stderr: int,
) -> None:
    os.dup2(stderr, 2)
    try:
        syscalls.default_signals()
        cgroup.join()
        supervisor = os.getppid()
        if enter_root is not None:
            enter_root()
        enter_user_namespace(ids, ask=lambda: _ask_for_ids(up, mapped))
        syscalls.die_with_parent(signal.SIGKILL)
        if os.getppid() != supervisor:
            return
        _place_fds(info, up, filter_program)
        os.chdir("/")
        os.execve(argv[0], [*argv, "--", *first_process.command(_PROGRAM_FD)], {"PATH": "/usr/bin:/bin"})
    except OSError as error:
        os.write(2, f"{error}\n".encode())
        raise


def _ask_for_ids(up: int, mapped: int) -> bool:
    os.write(up, WANTS_IDS)
    return os.read(mapped, 1) != b""


def _place_fds(info: int, up: int, filter_program: bytes) -> None:
    """Put the descriptors where bwrap's arguments expect them; everything else closes."""
    null = os.open(os.devnull, os.O_RDONLY)
    program = first_process.program_fd()
    sources = (null, up, info, null, seccomp.program_fd(filter_program), null if program is None else program)
    targets = (0, 1, INFO_FD, EMPTY_FD, SECCOMP_FD, _PROGRAM_FD)
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in sources]
    for target, fd in zip(targets, high, strict=True):
        os.dup2(fd, target)
    close_other_fds((2, *targets))
