"""Becoming a command, in a child of the door: its place, its user, its limits, its program."""

from __future__ import annotations

import contextlib
import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agentrl.sandbox.supervisor import syscalls
from agentrl.sandbox.supervisor.cgroups import Cgroup, Limits
from agentrl.sandbox.supervisor.crowd import Crowd, Inhabitants

ROOT_CAPABILITIES = (
    syscalls.CAP_CHOWN,
    syscalls.CAP_DAC_OVERRIDE,
    syscalls.CAP_FOWNER,
    syscalls.CAP_FSETID,
    syscalls.CAP_KILL,
    syscalls.CAP_SETGID,
    syscalls.CAP_SETUID,
)
"""What root may do to its own files, users and processes: enough for tar, chown and su, nothing for the kernel."""
ROOT_MASK = sum(1 << number for number in ROOT_CAPABILITIES)

CANNOT_RUN, NOT_FOUND = 126, 127
HANDOFF_IN, HANDOFF_OUT = 198, 199
"""Descriptors by which a session's shell takes over what the one before it left, and leaves it to the next."""


@dataclass(frozen=True)
class Command:
    """One command as the owner asked for it."""

    argv: list[str]
    """Program and arguments; the program is looked up in env's PATH."""
    cwd: str
    env: dict[str, str]
    user: str | None
    """Name or number; None is root."""
    limits: dict[str, int | None]
    """memory_mb, cpu_s, pids, file_mb of its own; None for those that have none."""


class UnknownUser(Exception):
    """The sandbox has no such user, or only root."""


class Place(Protocol):
    """Where commands run."""

    @property
    def crowd(self) -> Crowd:
        """Who runs in it."""
        ...

    def enter(self, command: Command) -> dict[str, str]:
        """Make this process, a child of the door, one of the place's: as the command's user, within its limits.

        Returns the environment that it has beside the command's own. Raises OSError, UnknownUser.
        """
        ...

    def oom_kills(self) -> int:
        """How often the memory limit has killed."""
        ...


@dataclass(frozen=True)
class Room:
    """A `Place`: a running sandbox of namespaces as its door knows it."""

    ranged: bool
    """Whether it has users beside root; only then root has ROOT_CAPABILITIES."""
    cgroup: Cgroup
    limits: Limits
    rlimits: bool
    """Whether limits must be set per process, for want of cgroups."""
    filter_program: bytes
    """What stands before system calls; empty for nothing."""

    @property
    def crowd(self) -> Crowd:
        return Inhabitants()

    def enter(self, command: Command) -> dict[str, str]:
        """See `Place.enter`."""
        self.cgroup.join()
        home = _take_identity(self, command.user)
        memory_bytes, pids = (self.limits.memory_bytes, self.limits.pids) if self.rlimits else (None, None)
        limit(command.limits, memory_bytes=memory_bytes, pids=pids)
        return {"HOME": home}

    def oom_kills(self) -> int:
        return self.cgroup.oom_kills()


def become(place: Place, command: Command, fds: dict[int, int], problem_fd: int) -> None:
    """Turn this process into the command. What is not the command's own fault goes to `problem_fd` as 'kind:text'.

    `fds` are its descriptors by number, and which of ours become them.

    A program or folder that is not there is the command's fault: exit code 126 or 127, and why on its stderr.
    """
    try:
        os.setsid()
        env = place.enter(command)
        for target, fd in fds.items():
            os.dup2(fd, target)
        syscalls.default_signals()
    except (OSError, UnknownUser) as error:
        os.write(problem_fd, f"{type(error).__name__}:{error}".encode())
        return
    try:
        os.chdir(command.cwd)
        _exec(command.argv, {**env, **command.env})
    except (OSError, ValueError) as error:  # ValueError: a zero byte or a lone surrogate
        _complain(f"cannot run in {command.cwd}: {error.strerror if isinstance(error, OSError) else error}")
        os._exit(CANNOT_RUN)


def _exec(argv: list[str], env: dict[str, str]) -> None:
    program = argv[0]
    folders = [""] if "/" in program else env.get("PATH", "").split(":")
    problem: OSError = FileNotFoundError(2, "not found")
    for folder in folders:
        try:
            os.execve(f"{folder}/{program}" if folder else program, argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            problem = error
    _complain(f"cannot run {program}: {problem.strerror}")
    os._exit(NOT_FOUND if isinstance(problem, FileNotFoundError) else CANNOT_RUN)


def _complain(text: str) -> None:
    os.write(2, f"sandbox: {text}\n".encode(errors="replace"))


def _take_identity(room: Room, user: str | None) -> str:
    """Become the user, with its capabilities and limits. Returns its home folder."""
    uid, gid, home = _find_user(user)
    if uid != 0:
        if not room.ranged:
            raise UnknownUser(f"user {user}: this machine maps only root into sandboxes")
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    syscalls.set_capabilities(ROOT_MASK if room.ranged and uid == 0 else 0)
    return home


def limit(own: dict[str, int | None], *, memory_bytes: int | None = None, pids: int | None = None) -> None:
    """Set a command's own limits for this process; those of its place too, where nothing else holds them."""
    memory_mb, cpu_s, file_mb = own["memory_mb"], own["cpu_s"], own["file_mb"]
    _lower(resource.RLIMIT_AS, None if memory_mb is None else memory_mb << 20, memory_bytes)
    _lower(resource.RLIMIT_NPROC, own["pids"], pids)
    _lower(resource.RLIMIT_FSIZE, None if file_mb is None else file_mb << 20)
    _lower(resource.RLIMIT_CPU, cpu_s, grace=1)


def _lower(kind: int, *values: int | None, grace: int = 0) -> None:
    """Set a limit to the least of the values that are given and of what it is; the hard one by `grace` above."""
    given = [value for value in values if value is not None]
    if given:
        hard = resource.getrlimit(kind)[1]
        most = min(given) if hard == resource.RLIM_INFINITY else min(*given, hard)
        resource.setrlimit(kind, (most, most if hard == most else most + grace))


def _find_user(user: str | None) -> tuple[int, int, str]:
    """(uid, gid, home) from the sandbox's own /etc/passwd, read as text: never through its libraries."""
    if user is None or user in ("", "root", "0"):
        return 0, 0, "/root"
    with contextlib.suppress(OSError):
        for line in Path("/etc/passwd").read_text(errors="replace").splitlines():
            fields = line.split(":")
            if len(fields) == 7 and user in (fields[0], fields[2]) and fields[2].isdigit() and fields[3].isdigit():
                return int(fields[2]), int(fields[3]), fields[5]
    if user.isdigit():
        return int(user), int(user), "/"
    raise UnknownUser(f"user {user}: not in the sandbox's /etc/passwd")
