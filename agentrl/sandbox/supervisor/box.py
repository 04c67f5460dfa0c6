"""One sandbox as the supervisor holds it: starting, up, dying, gone."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from collections import deque
from collections.abc import Callable
from typing import Any

from agentrl.sandbox.supervisor import frames, inside
from agentrl.sandbox.supervisor.cgroups import Cgroup, Limits
from agentrl.sandbox.supervisor.execution import Capture, Done, ExecRequest, Execution
from agentrl.sandbox.supervisor.launch import IdMap, launch
from agentrl.sandbox.supervisor.processes import describe_status
from agentrl.sandbox.supervisor.reactor import Reactor, Timer

_REMOVE_RETRY_S = 0.005
_REMOVE_TRIES = 2000
_MAX_STDERR_BYTES = 4096


class Box:
    """Lives from the fork of bwrap until its processes and control groups are gone."""

    def __init__(
        self,
        reactor: Reactor,
        *,
        argv: list[str],
        ids: IdMap,
        cgroup: Cgroup,
        limits: Limits,
        rlimits: bool,
        lifetime_s: float,
        on_gone: Callable[[], None],
    ) -> None:
        self._reactor = reactor
        self._ids, self._cgroup, self._limits, self._rlimits = ids, cgroup, limits, rlimits
        self._on_gone = on_gone
        self._room: inside.Room | None = None
        self._first_pid = 0
        self._reason: str | None = None
        self._gone_waiters: list[Callable[[str | None], None]] = []
        self._waiting: deque[Execution] = deque()
        self._running: Execution | None = None
        self._frozen = False
        self._launched = launch(argv, ids, cgroup)
        self._outer_fd = os.pidfd_open(self._launched.pid)
        reactor.on_readable(self._outer_fd, self._outer_ended)
        reason = f"its lifetime of {lifetime_s:g} s is over"
        self._lifetime = reactor.call_later(lifetime_s, lambda: self.kill(reason))

    def when_up(self, timeout_s: float, done: Done) -> None:
        """Call `done` when the first process runs, or with the reason why it never will."""
        self._started: Done | None = done
        self._start_timer = self._reactor.call_later(timeout_s, lambda: self.kill(f"did not start in {timeout_s:g} s"))
        self._stderr = Capture(self._reactor, self._launched.stderr_fd, _MAX_STDERR_BYTES)
        self._stderr.watch(lambda: None)
        self._reactor.on_readable(self._launched.up_fd, self._first_process_runs)

    def _first_process_runs(self) -> None:
        self._reactor.forget(self._launched.up_fd)
        if not os.read(self._launched.up_fd, 16):
            return  # its end: bwrap failed, and says so when it has ended
        info = json.loads(os.read(self._launched.info_fd, 4096))
        self._close_start_pipes()
        self._first_pid = info["child-pid"]
        self._room = inside.Room(
            os.pidfd_open(self._first_pid), self._ids.ranged, self._cgroup, self._limits, self._rlimits
        )
        self._report_start({"pid": self._first_pid}, b"")

    def _close_start_pipes(self) -> None:
        self._reactor.forget(self._launched.up_fd)
        os.close(self._launched.up_fd)
        os.close(self._launched.info_fd)

    def _report_start(self, header: frames.Header, payload: bytes) -> None:
        self._start_timer.cancel()
        if self._started is not None:
            started, self._started = self._started, None
            started(header, payload)

    def execute(self, request: ExecRequest, done: Done) -> Execution:
        """Run a command when those before it are done and the sandbox is not frozen."""

        def done_and_next(header: frames.Header, payload: bytes) -> None:
            if self._running is execution:
                self._running = None
            done(header, payload)
            self._start_next()

        execution = Execution(self._reactor, self.room, self._first_pid, request, done_and_next)
        self._waiting.append(execution)
        self._start_next()
        return execution

    def cancel(self, execution: Execution) -> None:
        """Kill the command, or forget it if it has not begun."""
        if execution is self._running:
            execution.kill()
        elif execution in self._waiting:
            self._waiting.remove(execution)
            execution.fail("cancelled before it began")

    @property
    def reason(self) -> str:
        """Why it ended or is ending."""
        return self._reason or "it has not ended"

    @property
    def room(self) -> inside.Room:
        if self._room is None or self._reason is not None:
            raise ProcessLookupError(self._reason or "the sandbox is not up yet")
        return self._room

    def visit(self, body: Callable[[inside.Room], inside.Report], timeout_s: float, done: Done) -> None:
        """Do one thing inside that is not a command."""
        Visit(self._reactor, self.room, body, timeout_s, done)

    def freeze(self, frozen: bool, timeout_s: float, done: Done) -> None:
        """Stop or continue all its processes, and the clock of the command in flight; later commands wait."""
        room = self.room
        if frozen != self._frozen and self._running is not None:
            (self._running.pause if frozen else self._running.resume)()
        self._frozen = frozen
        if self._cgroup.freezes:
            self._cgroup.freeze(frozen)
            done({}, b"")
        else:
            Visit(self._reactor, room, lambda _: inside.stop_all(frozen), timeout_s, done)
        self._start_next()

    def kill(self, reason: str) -> None:
        """End every process in it. What waits for a result gets `reason`."""
        if self._reason is not None:
            return  # dying or gone already
        self._reason = reason
        with contextlib.suppress(ProcessLookupError):
            if self._room is not None:
                signal.pidfd_send_signal(self._room.pidfd, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(self._outer_fd, signal.SIGKILL)
        if self._frozen and self._cgroup.freezes:
            self._cgroup.freeze(False)  # the kill reached the sandbox; bwrap must run to see that

    def when_gone(self, callback: Callable[[str | None], None]) -> None:
        """Call with None when nothing is left of it, or with what is. Only while it is not gone."""
        self._gone_waiters.append(callback)

    def _start_next(self) -> None:
        if self._running is None and self._waiting and not self._frozen and self._reason is None:
            self._running = self._waiting.popleft()
            try:
                self._running.start()
            except OSError as error:  # the machine has no descriptors or processes left
                self._running.fail(f"cannot start a command: {error}")

    def _outer_ended(self) -> None:
        """bwrap ends after the first process, or takes it along."""
        self._reactor.forget(self._outer_fd)
        status = os.waitpid(self._launched.pid, 0)[1]
        if self._reason is None:
            self._reason = f"bwrap {describe_status(status)}"
        if self._room is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._room.pidfd, signal.SIGKILL)
        self._fail_start()
        for execution in (*([self._running] if self._running else []), *self._waiting):
            execution.fail(self._reason)
        self._waiting.clear()
        self._remove(_REMOVE_TRIES)

    def _fail_start(self) -> None:
        while self._stderr.open and self._stderr.read_once():
            if not select.select([self._launched.stderr_fd], (), (), 0)[0]:
                break
        said = self._stderr.kept.decode(errors="replace").strip()
        message = f"{self._reason}: {said}" if said else str(self._reason)
        self._report_start({"error": message, "kind": "SandboxError", "errno": None}, b"")
        self._stderr.close()

    def _remove(self, tries: int) -> None:
        first_gone = self._room is None or bool(select.select([self._room.pidfd], (), (), 0)[0])
        if first_gone and self._cgroup.try_remove():
            self._leave(None)
        elif tries == 0:
            self._leave("processes outlive SIGKILL")
        else:
            self._reactor.call_later(_REMOVE_RETRY_S, lambda: self._remove(tries - 1))

    def _leave(self, problem: str | None) -> None:
        self._lifetime.cancel()
        os.close(self._outer_fd)
        if self._room is not None:
            os.close(self._room.pidfd)
        else:
            self._close_start_pipes()
        self._on_gone()
        for callback in self._gone_waiters:
            callback(problem)


class Visit:
    """A visitor with a deadline."""

    def __init__(
        self,
        reactor: Reactor,
        room: inside.Room,
        body: Callable[[inside.Room], inside.Report],
        timeout_s: float,
        done: Done,
    ) -> None:
        self._pid, report_fd = inside.visit(room, lambda: body(room))
        self._done = done
        self._timed_out = False
        self._pipe = Capture(reactor, report_fd, frames.MAX_PAYLOAD_BYTES)
        self._pipe.watch(self._ended)
        self._timer: Timer = reactor.call_later(timeout_s, self._give_up)
        self._timeout_s = timeout_s

    def _give_up(self) -> None:
        self._timed_out = True
        os.kill(self._pid, signal.SIGKILL)

    def _ended(self) -> None:
        self._timer.cancel()
        status = os.waitpid(self._pid, 0)[1]
        reports: list[tuple[dict[str, Any], bytes]] = list(frames.FrameBuffer().feed(bytes(self._pipe.kept)))
        if reports:
            self._done(*reports[0])
            return
        why = f"no answer in {self._timeout_s:g} s" if self._timed_out else f"its visitor {describe_status(status)}"
        self._done({"error": why, "kind": "SandboxError", "errno": None}, b"")
