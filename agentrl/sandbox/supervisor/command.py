"""What happens in the sandbox's process tree: becoming a command, and killing what commands started.

Runs in children of the door. They are in the pid namespace, the door is not: it is their true parent, and out of reach.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from agentrl.sandbox.supervisor import syscalls
from agentrl.sandbox.supervisor.cgroups import Cgroup, Limits
from agentrl.sandbox.supervisor.processes import fork_and_wait

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
_MAX_SWEEPS = 50
_SWEEP_PAUSE_S = 0.002


@dataclass(frozen=True)
class Room:
    """A running sandbox as its door knows it."""

    pidfd: int
    """Of its first process."""
    ranged: bool
    """Whether it has users beside root; only then root has ROOT_CAPABILITIES."""
    cgroup: Cgroup
    limits: Limits
    rlimits: bool
    """Whether limits must be set per process, for want of cgroups."""
    filter_program: bytes
    """What stands before system calls; empty for nothing."""


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


def become(room: Room, command: Command, fds: dict[int, int], problem_fd: int) -> None:
    """Turn this process into the command. What is not the command's own fault goes to `problem_fd` as 'kind:text'.

    `fds` are its descriptors by number, and which of ours become them.

    A program or folder that is not there is the command's fault: exit code 126 or 127, and why on its stderr.
    """
    try:
        os.setsid()
        room.cgroup.join()
        home = _take_identity(room, command.user)
        _limit(room, command.limits)
        for target, fd in fds.items():
            os.dup2(fd, target)
        syscalls.default_signals()
    except (OSError, UnknownUser) as error:
        os.write(problem_fd, f"{type(error).__name__}:{error}".encode())
        return
    try:
        os.chdir(command.cwd)
        _exec(command.argv, {"HOME": home, **command.env})
    except (OSError, ValueError) as error:  # ValueError: a zero byte or a lone surrogate
        _complain(f"cannot run in {command.cwd}: {error.strerror if isinstance(error, OSError) else error}")
        os._exit(CANNOT_RUN)


class Process(NamedTuple):
    """One process in the sandbox. A pid alone is none: it is given out again."""

    pid: int
    started: int
    """Clock ticks from boot to its start."""


class Seen(NamedTuple):
    """A process as /proc shows it."""

    process: Process
    state: str
    """One letter; Z and X are dead."""
    parent: int


def processes() -> frozenset[Process]:
    """All in the sandbox but its first, zombies too."""
    return frozenset(seen.process for seen in _look())


def count_since(earlier: frozenset[Process]) -> int:
    """Processes that live now and were not there `earlier`."""
    return sum(seen.state not in "ZX" and seen.process not in earlier for seen in _look())


def newcomers(seen: Iterable[Seen], earlier: frozenset[Process]) -> list[Seen]:
    """Those that were not there `earlier` and do not descend from one that was, and is there still."""
    now = {one.process.pid: one for one in seen}
    old = {pid for pid, one in now.items() if one.process in earlier}
    return [one for pid, one in now.items() if pid not in old and not _descends(pid, now, old)]


def kill_since(earlier: frozenset[Process]) -> None:
    """Kill every process that was not there `earlier` and does not descend from one that was."""
    for _ in range(_MAX_SWEEPS):
        fork_and_wait(lambda: _sweep(earlier))
        if all(seen.state in "ZX" for seen in newcomers(_look(), earlier)):
            return
        select.select((), (), (), _SWEEP_PAUSE_S)


def kill_all() -> tuple[int, int]:
    """Kill every process but the first, and wait until they are gone. Returns how many there were, and are left."""
    victims = left = count_since(frozenset())
    for _ in range(_MAX_SWEEPS):
        if not left:
            break
        signal_all(signal.SIGKILL)
        select.select((), (), (), _SWEEP_PAUSE_S)
        left = count_since(frozenset())
    return victims, left


def signal_all(number: int) -> None:
    """Signal every process but the first, at once: no fork slips through."""
    fork_and_wait(lambda: _signal_others(number))


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


def _limit(room: Room, own: dict[str, int | None]) -> None:
    """Set the command's own limits; those of the sandbox too, where no cgroup holds them."""
    memory_mb, cpu_s, file_mb = own["memory_mb"], own["cpu_s"], own["file_mb"]
    memory_bytes = None if memory_mb is None else memory_mb << 20
    _lower(resource.RLIMIT_AS, memory_bytes, room.limits.memory_bytes if room.rlimits else None)
    _lower(resource.RLIMIT_NPROC, own["pids"], room.limits.pids if room.rlimits else None)
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


def _look() -> Iterator[Seen]:
    """Each process but the first."""
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit() and name != "1":
            with contextlib.suppress(OSError):  # gone meanwhile
                fields = Path(f"/proc/{name}/stat").read_text(errors="replace").rpartition(")")[2].split()
                yield Seen(Process(int(name), int(fields[19])), fields[0], int(fields[1]))


def _sweep(earlier: frozenset[Process]) -> None:
    """One atomic kill: nothing can fork while everything is stopped."""
    _signal_others(signal.SIGSTOP)
    for seen in newcomers(_look(), earlier):
        if seen.process.pid != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(seen.process.pid, signal.SIGKILL)
    _signal_others(signal.SIGCONT)


def _signal_others(number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, number)


def _descends(pid: int, now: dict[int, Seen], ancestors: set[int]) -> bool:
    passed = {pid}
    while pid in now:
        pid = now[pid].parent
        if pid in ancestors:
            return True
        if pid in passed:  # numbers that were given out again while they were read
            return False
        passed.add(pid)
    return False
