"""One command from its request to its result: pipes, output caps, wall time, and what to believe about its end.

Runs in the door, the parent of the command's process.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from agentrl.sandbox.death import Death
from agentrl.sandbox.supervisor import frames
from agentrl.sandbox.supervisor.command import (
    HANDOFF_IN,
    HANDOFF_OUT,
    Command,
    Place,
    become,
)
from agentrl.sandbox.supervisor.crowd import count_since, kill_since, processes
from agentrl.sandbox.supervisor.processes import is_exiting, run_and_exit, write_all
from agentrl.sandbox.supervisor.reactor import Reactor, Timer

DRAIN_S = 0.2
"""How long output of an ended command is waited for while something that it started holds its pipes open."""
KILL_GRACE_S = 10.0
"""How long a killed command may take to die before its result is given up."""
DEATH_WAIT_S = 1.0
"""How long the result of a command killed by SIGKILL is held back while its whole sandbox is dying: then the supervisor
answers in its place."""
DEATH_GLANCE_S = 0.02
"""The same, when the sandbox's first process shows no sign of dying."""
MAX_HANDOFF_BYTES = 1 << 20
"""What is longer is not handed off at all: half a state is worse than the one before."""
_CHUNK_BYTES = 65536

Done = Callable[[frames.Header, bytes], None]


@dataclass(frozen=True)
class ExecRequest:
    """What the owner asked for."""

    command: Command
    stdin: bytes | None
    handoff: bytes | None
    """What the command reads from HANDOFF_IN; what it writes to HANDOFF_OUT is part of its result. None: neither."""
    timeout_s: float
    max_output_bytes: int


class Capture:
    """The read end of a pipe: keeps the first bytes, counts the rest."""

    def __init__(self, reactor: Reactor, fd: int, max_bytes: int) -> None:
        self._reactor = reactor
        self._fd = fd
        self._max_bytes = max_bytes
        self.kept = bytearray()
        self.total = 0
        self.open = True
        os.set_blocking(fd, False)

    @property
    def truncated(self) -> bool:
        return self.total > len(self.kept)

    def watch(self, on_end: Callable[[], None]) -> None:
        def readable() -> None:
            if not self.read_once():
                on_end()

        self._reactor.on_readable(self._fd, readable)

    def read_once(self) -> bool:
        """Take what is there, one chunk at most. False at the end."""
        try:
            chunk = os.read(self._fd, _CHUNK_BYTES)
        except BlockingIOError:
            return True
        if not chunk:
            self.close()
            return False
        self.total += len(chunk)
        self.kept += chunk[: self._max_bytes - len(self.kept)]
        return True

    def take_rest(self) -> bytes:
        """What was written until now, or nothing if it was too much, which ends the reading; and close."""
        total = -1
        while self.open and total != self.total and not self.truncated:
            total = self.total
            self.read_once()
        self.close()
        return b"" if self.truncated else bytes(self.kept)

    def close(self) -> None:
        if self.open:
            self.open = False
            self._reactor.forget(self._fd)
            os.close(self._fd)


class Feed:
    """The write end of a command's stdin."""

    def __init__(self, reactor: Reactor, fd: int, data: bytes) -> None:
        self._reactor = reactor
        self._fd = fd
        self._rest = memoryview(data)
        self._open = True
        os.set_blocking(fd, False)
        reactor.on_writable(fd, self._writable)

    def _writable(self) -> None:
        try:
            self._rest = self._rest[os.write(self._fd, self._rest) :] if self._rest else self._rest
        except BrokenPipeError:
            self._rest = self._rest[:0]
        if not self._rest:
            self.close()

    def close(self) -> None:
        if self._open:
            self._open = False
            self._reactor.forget(self._fd)
            os.close(self._fd)


class Execution:
    """Runs a command and calls `done` once, with the result or an error."""

    def __init__(self, reactor: Reactor, place: Place, request: ExecRequest, done: Done) -> None:
        self._reactor = reactor
        self._place = place
        self._request = request
        self._done: Done | None = done
        self._pipes: _Pipes | None = None
        self._timer: Timer | None = None
        self._remaining_s = request.timeout_s
        self._status: int | None = None
        self._killed = False
        self._frozen_since: float | None = None
        self._frozen_s = 0.0

    def start(self) -> None:
        """Fork the command and watch it. Raises OSError when the machine cannot."""
        place, command = self._place, self._request.command
        self._oom_before = place.oom_kills()
        self._earlier = processes(place.crowd)
        self._started_at = time.monotonic()
        pipes = _Pipes(self._request.stdin is not None, self._request.handoff)
        try:
            self._child = os.fork()
        except OSError:
            pipes.close_theirs()
            pipes.close_ours()
            raise
        if self._child == 0:
            run_and_exit(lambda: become(place, command, pipes.fds, pipes.problem_write))
        pipes.close_theirs()
        self._pipes = pipes
        self._watch(pipes)

    def kill(self) -> None:
        """Kill everything that the command started, also what left its session. Its result follows."""
        if self._status is not None or self._pipes is None or self._killed:
            return
        self._killed = True
        self._set_timer(KILL_GRACE_S, lambda: self.fail(f"a killed command is still there after {KILL_GRACE_S:g} s"))
        kill_since(self._place.crowd, self._earlier)

    def pause(self) -> None:
        """Stop its clock: the sandbox is frozen."""
        if self._timer is not None and self._status is None:
            self._frozen_since = time.monotonic()
            self._remaining_s = max(0.0, self._timer.when - self._frozen_since)
            self._timer.cancel()

    def resume(self) -> None:
        if self._frozen_since is not None:
            self._frozen_s += time.monotonic() - self._frozen_since
            self._frozen_since = None
            self._set_timer(self._remaining_s, self.kill)

    def fail(self, message: str, kind: str = "SandboxError", *, death: Death | None = None) -> None:
        """There is no result. `death`: how its sandbox ended."""
        self._finish({"error": message, "kind": kind, "errno": None, "death": death}, b"")

    def _watch(self, pipes: _Pipes) -> None:
        self._feed = None if pipes.stdin is None else Feed(self._reactor, pipes.stdin, self._request.stdin or b"")
        self._stdout = Capture(self._reactor, pipes.stdout, self._request.max_output_bytes)
        self._stderr = Capture(self._reactor, pipes.stderr, self._request.max_output_bytes)
        self._handoff = None
        if pipes.handoff is not None:
            self._handoff = Capture(self._reactor, pipes.handoff, MAX_HANDOFF_BYTES)
            self._handoff.watch(lambda: None)
        self._stdout.watch(self._output_ended)
        self._stderr.watch(self._output_ended)
        self._child_fd = os.pidfd_open(self._child)
        self._reactor.on_readable(self._child_fd, self._child_ended)
        self._timer = self._reactor.call_later(self._remaining_s, self.kill)

    def _set_timer(self, delay_s: float, callback: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._reactor.call_later(delay_s, callback)

    def _child_ended(self) -> None:
        self._reactor.forget(self._child_fd)
        os.close(self._child_fd)
        self._status = os.waitpid(self._child, 0)[1]
        self._duration_s = time.monotonic() - self._started_at - self._frozen_s
        self._leftover = count_since(self._place.crowd, self._earlier)
        if self._done is None or self._pipes is None:
            return
        if problem := os.read(self._pipes.problem, _CHUNK_BYTES):
            kind, _, text = problem.decode(errors="replace").partition(":")
            self.fail(text, kind)
        elif self._signal() == signal.SIGKILL and not self._killed:
            self._set_timer(DEATH_WAIT_S if is_exiting(1) else DEATH_GLANCE_S, self._complete)
        elif self._stdout.open or self._stderr.open:
            self._set_timer(DRAIN_S, self._complete)
        else:
            self._complete()

    def _signal(self) -> int | None:
        assert self._status is not None
        return os.WTERMSIG(self._status) if os.WIFSIGNALED(self._status) else None

    def _output_ended(self) -> None:
        ended = not self._stdout.open and not self._stderr.open
        if ended and self._status is not None and (self._killed or self._signal() != signal.SIGKILL):
            self._complete()

    def _complete(self) -> None:
        assert self._status is not None
        handoff = b"" if self._handoff is None else self._handoff.take_rest()
        header = {
            "exit_code": os.WEXITSTATUS(self._status) if os.WIFEXITED(self._status) and not self._killed else None,
            "signal": self._signal(),
            "timed_out": self._killed,
            "oom": self._place.oom_kills() > self._oom_before,
            "truncated": self._stdout.truncated or self._stderr.truncated,
            "bytes_total": self._stdout.total + self._stderr.total,
            "leftover_processes": self._leftover,
            "duration_s": self._duration_s,
            "stdout_bytes": len(self._stdout.kept),
            "handoff_bytes": len(handoff),
        }
        self._finish(header, bytes(self._stdout.kept + self._stderr.kept) + handoff)

    def _finish(self, header: frames.Header, payload: bytes) -> None:
        if self._done is None:
            return
        done, self._done = self._done, None
        if self._timer is not None:
            self._timer.cancel()
        if self._pipes is not None:
            self._stdout.close()
            self._stderr.close()
            for end in (self._feed, self._handoff):
                if end is not None:
                    end.close()
            os.close(self._pipes.problem)
        done(header, payload)


class _Pipes:
    """The pipes of one command: the child's ends and ours. Raises OSError without leaving one open."""

    def __init__(self, with_stdin: bool, handoff: bytes | None) -> None:
        self._opened: list[int] = []
        try:
            self.stdout, stdout_write = self._pipe()
            self.stderr, stderr_write = self._pipe()
            self.problem, self.problem_write = self._pipe()
            self.stdin: int | None = None
            if with_stdin:
                stdin_read, self.stdin = self._pipe()
            else:
                stdin_read = self._keep(os.dup(0))  # the door's own, the host's /dev/null
            self.fds = {0: stdin_read, 1: stdout_write, 2: stderr_write}
            """The child's, by the number that it knows them by."""
            self.handoff: int | None = None
            if handoff is not None:
                self.handoff, self.fds[HANDOFF_OUT] = self._pipe()
                self.fds[HANDOFF_IN] = self._keep(_as_file(handoff))
        except OSError:
            for fd in self._opened:
                os.close(fd)
            raise

    def close_theirs(self) -> None:
        for fd in (*self.fds.values(), self.problem_write):
            os.close(fd)

    def close_ours(self) -> None:
        for fd in (self.stdout, self.stderr, self.problem, self.stdin, self.handoff):
            if fd is not None:
                os.close(fd)

    def _pipe(self) -> tuple[int, int]:
        read_end, write_end = os.pipe()
        self._opened += (read_end, write_end)
        return read_end, write_end

    def _keep(self, fd: int) -> int:
        self._opened.append(fd)
        return fd


def _as_file(data: bytes) -> int:
    """A descriptor that reads as `data`. Not a pipe: from one a shell would read byte by byte."""
    fd = os.memfd_create("handoff")
    write_all(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
