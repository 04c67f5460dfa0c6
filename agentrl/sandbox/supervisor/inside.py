"""What runs in a visitor: a forked child of the supervisor that has entered a sandbox to do one thing and report.

A visitor joins every namespace of the sandbox, but stays outside its process tree: only children of a process that
enters a pid namespace belong to it. So the agent can neither see, signal nor impersonate it, and it is the true parent
of the command that it starts: exit statuses come from the kernel.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.sandbox.supervisor import frames, syscalls
from agentrl.sandbox.supervisor.cgroups import Cgroup, Limits
from agentrl.sandbox.supervisor.processes import (
    close_other_fds,
    fork_and_wait,
    reset_signals,
    run_and_exit,
    write_all,
)

Report = tuple[frames.Header, bytes]

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

CANNOT_RUN, NOT_FOUND = 126, 127
_OOM_SCORE = "500"
"""Commands are killed for memory before the sandbox's own first process is."""
_MAX_OPEN_FILES = 1024
_MAX_SWEEPS = 50


@dataclass(frozen=True)
class Room:
    """A running sandbox as its visitors need it."""

    pidfd: int
    """Of its first process."""
    ranged: bool
    """Whether it has users beside root; only then root has ROOT_CAPABILITIES."""
    cgroup: Cgroup
    limits: Limits
    rlimits: bool
    """Whether limits must be set per process, for want of cgroups."""


@dataclass(frozen=True)
class Command:
    """One command as the owner asked for it."""

    argv: list[str]
    """Program and arguments; the program is looked up in env's PATH."""
    cwd: str
    env: dict[str, str]
    user: str | None
    """Name or number; None is root."""


class UnknownUser(Exception):
    """The sandbox has no such user, or only root."""


def visit(room: Room, body: Callable[[], Report], keep: Sequence[int] = ()) -> tuple[int, int]:
    """Fork a visitor that runs `body`. Returns its pid and a descriptor that yields one frame, its report, then ends.

    `keep` are the descriptors that `body` uses. An error of `body` is reported as {"error", "kind", "errno"}.
    """
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        run_and_exit(lambda: _visit(room, body, write_end, keep))
    os.close(write_end)
    return pid, read_end


def _visit(room: Room, body: Callable[[], Report], report_fd: int, keep: Sequence[int]) -> None:
    try:
        os.dup2(1, 2)  # the supervisor's 0 and 1 are /dev/null; its errors are not for here
        close_other_fds((0, 1, 2, report_fd, room.pidfd, *room.cgroup.fds, *keep))
        reset_signals()
        os.umask(0o022)
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
        syscalls.hide_memory()
        syscalls.setns(room.pidfd, syscalls.SANDBOX_NAMESPACES)
        header, payload = body()
    except (OSError, UnknownUser) as error:
        number = error.errno if isinstance(error, OSError) else None
        header, payload = {"error": str(error), "kind": type(error).__name__, "errno": number}, b""
    write_all(report_fd, frames.encode(header, payload))


def run_command(room: Room, command: Command, stdio: tuple[int, int, int], control_fd: int) -> Report:
    """Start the command and wait for it, not for its output's end.

    A byte on `control_fd` means: kill whatever it started, also what left its session. The report has exit_code or
    signal, killed, and the number of leftover processes.
    """
    earlier = _pids()
    setup_read, setup_write = os.pipe()
    child = os.fork()
    if child == 0:
        run_and_exit(lambda: _become(room, command, stdio, setup_write))
    for fd in (setup_write, *stdio):
        os.close(fd)
    if problem := os.read(setup_read, 4096):
        os.waitpid(child, 0)
        kind, _, text = problem.decode().partition(":")
        return {"error": text, "kind": kind, "errno": None}, b""
    killed = not _wait(child, control_fd)
    if killed:
        _kill_since(earlier)
    status = os.waitpid(child, 0)[1]
    return {
        "exit_code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
        "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
        "killed": killed,
        "leftover": len(_living(_pids() - earlier)),
    }, b""


def kill_all() -> Report:
    """Kill every process of the sandbox but its first, and wait until they are gone. Reports how many there were."""
    victims = len(_living(_pids()))
    for _ in range(_MAX_SWEEPS):
        fork_and_wait(lambda: _signal_everything(signal.SIGKILL))
        if not _living(_pids()):
            return {"killed": victims}, b""
        select.select((), (), (), 0.005)
    return {"error": f"{len(_living(_pids()))} processes outlive SIGKILL", "kind": "OSError", "errno": None}, b""


def stop_all(stopped: bool) -> Report:
    """Stop or continue every process of the sandbox but its first, where no freezer does it."""
    fork_and_wait(lambda: _signal_everything(signal.SIGSTOP if stopped else signal.SIGCONT))
    return {}, b""


def probe() -> Report:
    """Look whether its files and its first process are there."""
    return {"alive": Path("/").is_dir() and Path("/proc/1/stat").exists()}, b""


def put(room: Room, entries: list[dict[str, Any]], content: bytes) -> Report:
    """Make directories, files and links.

    `entries` have path and kind (dir, file, link); a mode (None leaves a directory that is there as it is), the size of
    a file, the target of a link. `content` is that of all files, in their order.
    """
    _become_root(room)
    try:
        _put(entries, content)
    except OSError as error:
        return {"error": f"{error.filename}: {error.strerror}", "kind": "FileError", "errno": error.errno}, b""
    return {}, b""


def _put(entries: list[dict[str, Any]], content: bytes) -> None:
    offset = 0
    for entry in entries:
        path, kind = entry["path"], entry["kind"]
        if kind == "dir":
            Path(path).mkdir(parents=True, exist_ok=True)
            if entry["mode"] is not None:
                Path(path).chmod(entry["mode"])
            continue
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            Path(path).unlink()  # never write through a link, nor into a file that has other names
        if kind == "link":
            Path(path).symlink_to(entry["target"])
        else:
            _write_new(path, content[offset : offset + entry["size"]], entry["mode"])
            offset += entry["size"]


def get(room: Room, path: str, max_bytes: int) -> Report:
    """Contents of a regular file: {"found": False}, or {"found": True, "size"} with at most max_bytes of payload."""
    _become_root(room)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return {"found": False}, b""
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        return {"found": False}, b""
    data = b""
    while len(data) <= max_bytes and (chunk := os.read(fd, 1 << 20)):
        data += chunk
    return {"found": True, "size": max(info.st_size, len(data))}, data[:max_bytes]


def _become_root(room: Room) -> None:
    """Act on files as the sandbox's root, and on its account."""
    room.cgroup.join("memory")
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def _write_new(path: str, data: bytes, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        write_all(fd, data)
        os.fchmod(fd, mode)
    finally:
        os.close(fd)


def _wait(child: int, control_fd: int) -> bool:
    """True when the child has ended; False when it must be killed first."""
    child_fd = os.pidfd_open(child)
    poll = select.poll()
    poll.register(child_fd, select.POLLIN)
    poll.register(control_fd, select.POLLIN)
    ready = {fd for fd, _ in poll.poll()}
    return child_fd in ready


def _become(room: Room, command: Command, stdio: tuple[int, int, int], setup_fd: int) -> None:
    """Turn this process, already in the sandbox's process tree, into the command."""
    try:
        os.setsid()
        room.cgroup.join()
        home = _take_identity(room, command.user)
        for fd, target in zip(stdio, (0, 1, 2), strict=True):
            os.dup2(fd, target)
    except (OSError, UnknownUser) as error:
        os.write(setup_fd, f"{type(error).__name__}:{error}".encode())
        raise
    env = {"HOME": home, **command.env}
    os.close(setup_fd)
    try:
        os.chdir(command.cwd)
        _exec(command.argv, env)
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
    os.write(2, f"sandbox: {text}\n".encode())


def _take_identity(room: Room, user: str | None) -> str:
    """Give up everything that the user may not have. Returns its home folder."""
    uid, gid, home = _find_user(user)
    if uid != 0 and not room.ranged:
        raise UnknownUser(f"user {user}: this machine maps only root into sandboxes")
    if room.ranged:
        os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    syscalls.limit_capabilities(ROOT_CAPABILITIES if room.ranged and uid == 0 else ())
    syscalls.forbid_new_privileges()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if room.rlimits:
        resource.setrlimit(resource.RLIMIT_AS, (room.limits.memory_bytes,) * 2)
        resource.setrlimit(resource.RLIMIT_NPROC, (room.limits.pids,) * 2)
    return home


def _find_user(user: str | None) -> tuple[int, int, str]:
    """(uid, gid, home) from the sandbox's own /etc/passwd, read as text: never through its libraries."""
    if user in (None, "", "root", "0"):
        return 0, 0, "/root"
    with contextlib.suppress(OSError):
        for line in Path("/etc/passwd").read_text(errors="replace").splitlines():
            fields = line.split(":")
            if len(fields) == 7 and user in (fields[0], fields[2]):
                return int(fields[2]), int(fields[3]), fields[5]
    if user.isdigit():
        return int(user), int(user), "/"
    raise UnknownUser(f"user {user}: not in the sandbox's /etc/passwd")


def _pids() -> frozenset[int]:
    """Pids in the sandbox, as it numbers them, but its first."""
    return frozenset(int(name) for name in os.listdir("/proc") if name.isdigit()) - {1}  # noqa: PTH208


def _stat_fields(pid: int) -> tuple[str, int]:
    """(state, parent) of a process in the sandbox; ('X', 0) if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return "X", 0
    return fields[0], int(fields[1])


def _living(pids: frozenset[int]) -> list[int]:
    return [pid for pid in pids if _stat_fields(pid)[0] not in "ZX"]


def _kill_since(earlier: frozenset[int]) -> None:
    """Kill every process that was not there `earlier` and does not descend from one that was."""
    for _ in range(_MAX_SWEEPS):
        fork_and_wait(lambda: _sweep(earlier))
        if not _living(_newcomers(earlier, spare=None)):
            return
        select.select((), (), (), 0.002)


def _sweep(earlier: frozenset[int]) -> None:
    """One atomic kill: nothing can fork while everything is stopped."""
    _signal_everything(signal.SIGSTOP)
    for pid in _newcomers(earlier, spare=os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _signal_everything(signal.SIGCONT)


def _newcomers(earlier: frozenset[int], *, spare: int | None) -> frozenset[int]:
    parents = {pid: _stat_fields(pid)[1] for pid in _pids() if pid != spare}
    return frozenset(pid for pid in parents if pid not in earlier and not _descends(pid, parents, earlier))


def _descends(pid: int, parents: dict[int, int], ancestors: frozenset[int]) -> bool:
    while (pid := parents.get(pid, 0)) > 1:
        if pid in ancestors:
            return True
    return False


def _signal_everything(number: int) -> None:
    """To every process of the sandbox but its first and this one, at once."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, number)
