"""One sandbox as the supervisor holds it: starting, up, dying, gone. It passes requests to the sandbox's door."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

from agentrl.sandbox.death import Death
from agentrl.sandbox.supervisor import frames
from agentrl.sandbox.supervisor.cgroups import Cgroup, Limits
from agentrl.sandbox.supervisor.command import Room
from agentrl.sandbox.supervisor.connection import Connection
from agentrl.sandbox.supervisor.door import let_in, open_door
from agentrl.sandbox.supervisor.launch import WANTS_IDS, launch
from agentrl.sandbox.supervisor.lifetime import Lifetime
from agentrl.sandbox.supervisor.processes import describe_status, is_readable
from agentrl.sandbox.supervisor.reactor import Reactor
from agentrl.sandbox.supervisor.root import Root
from agentrl.sandbox.supervisor.userns import IdMap, map_range

_REMOVE_RETRY_S = 0.005
_REMOVE_TRIES = 2000
_MAX_STDERR_BYTES = 4096
_CENSUS, _STILL = -1, -2
"""Ids of requests to the door that are the box's own."""

Send = Callable[[frames.Header, bytes], None]


class Gone(ProcessLookupError):
    """A request to a sandbox that is not there any more, or not yet."""

    def __init__(self, message: str, death: Death | None) -> None:
        super().__init__(message)
        self.death = death


def _death(status: int) -> Death:
    """How a sandbox ended whose bwrap ended with that wait status, unasked.

    The kernel lets no signal from inside end the first process, and the memory limit finds larger ones to kill: one
    that was killed was killed from outside, and one that exited was made to from inside.
    """
    killed = os.WIFSIGNALED(status) or os.WEXITSTATUS(status) > 128
    return Death.KILLED if killed else Death.ENDED_INSIDE


class Box:
    """Lives from the fork of bwrap until its processes and control groups are gone."""

    def __init__(
        self,
        reactor: Reactor,
        *,
        argv: list[str],
        root: Root | None,
        ids: IdMap,
        cgroup: Cgroup,
        limits: Limits,
        rlimits: bool,
        filter_program: bytes,
        start_id: int,
        files: tuple[list[dict[str, Any]], bytes],
        start_timeout_s: float,
        lifetime_s: float,
        send: Send,
        reap: Callable[[], None],
        on_gone: Callable[[], None],
    ) -> None:
        """`send` takes replies to the owner; that to `start_id` comes when `files` are there, or never will be.

        `files` are what `files.put` takes. `root` is closed with the box; without one bwrap makes the files.
        `filter_program` stands before system calls, empty for none. `reap` reaps adopted processes. Raises OSError when
        the machine has no processes or descriptors left.
        """
        self._reactor = reactor
        self._ids, self._cgroup, self._files = ids, cgroup, files
        self._send = send
        self._reap = reap
        self._on_gone = on_gone
        self._first_fd: int | None = None
        """Pidfd of its first process, once that runs."""
        self._door: Connection | None = None
        """Once it may enter."""
        self._door_socket: socket.socket | None = None
        self._door_pid = 0
        self._reason: str | None = None
        self.death: Death | None = None
        """How it ended, where that is known."""
        self._start_id: int | None = start_id
        self._pending = {start_id}
        self._closing: list[int] = []
        self._frozen = False
        self._outer_gone = False
        self.root = root
        self._held: list[tuple[frames.Header, bytes]] | None = None
        """Requests that wait until its files are sealed; None while none have to."""
        self._counted: Callable[[int], None] | None = None
        self._stands_still: Callable[[], None] | None = None
        self._launched = launch(argv, ids, cgroup, filter_program, root.enter if root is not None else None)
        self._outer_fd = os.pidfd_open(self._launched.pid)
        reactor.on_readable(self._outer_fd, self._outer_ended)
        reactor.on_readable(self._launched.up_fd, self._outer_says)
        late, old = f"did not start in {start_timeout_s:g} s", f"its lifetime of {lifetime_s:g} s is over"
        self._start_timer = reactor.call_later(start_timeout_s, lambda: self.kill(late))
        self._lifetime = Lifetime(reactor, lifetime_s, lambda: self.kill(old, Death.EXPIRED))
        room = Room(ranged=ids.ranged, cgroup=cgroup, limits=limits, rlimits=rlimits, filter_program=filter_program)
        try:
            self._door_pid, self._door_socket = open_door(room)  # while bwrap is at work
        except OSError as error:
            problem = f"no process for its door: {error}"
            reactor.call_later(0, lambda: self.kill(problem))  # whoever makes this box does not know its children yet

    @property
    def children(self) -> tuple[int, int]:
        """Pids that it waits for itself; 0 for none."""
        return self._launched.pid, self._door_pid

    @property
    def pidfd(self) -> int:
        """Of its first process, once that runs."""
        assert self._first_fd is not None
        return self._first_fd

    @property
    def reason(self) -> str:
        """Why it ended or is ending."""
        return self._reason or "it has not ended"

    def request(self, header: frames.Header, payload: bytes) -> None:
        """Pass a request to the door; its reply, or the sandbox's end, becomes a reply to the owner."""
        if self._door is None or self._reason is not None:
            raise Gone(self._reason or "the sandbox is not up yet", self.death)
        self._pending.add(header["id"])
        if self._held is not None:
            self._held.append((header, payload))
        else:
            self._door.send(header, payload)

    def assign(self, header: frames.Header) -> None:
        """It was handed out: its lifetime begins, if it answers."""
        self._lifetime.restart()
        self.request({**header, "op": "probe"}, b"")

    def notify(self, header: frames.Header) -> None:
        """Tell the door something that it does not reply to."""
        if self._door is not None:
            self._door.send(header)

    def cancel(self, header: frames.Header) -> None:
        """Kill a command, or forget it if it has not begun."""
        if self._held is not None:
            self._held = [entry for entry in self._held if entry[0]["id"] != header["target"]]
        self.notify(header)

    def hold(self, request_id: int, then: Callable[[int], None]) -> None:
        """Let no further request in until `request_id` has its answer; `then` gets the number of its processes.

        Raises OSError when the sandbox is not up, or held already.
        """
        if self._door is None or self._reason is not None:
            raise Gone(self._reason or "the sandbox is not up yet", self.death)
        if self._held is not None:
            raise BlockingIOError("its files are being sealed already")
        self._pending.add(request_id)
        self._held, self._counted = [], then
        self.notify({"op": "frozen", "frozen": True})
        self._door.send({"id": _CENSUS, "op": "census"})

    def stand_still(self, then: Callable[[], None]) -> None:
        """While it is held: stop its processes, then call `then`."""
        if self._cgroup.freezes:
            self._cgroup.freeze(True)
            then()
        else:
            self._stands_still = then
            self.notify({"id": _STILL, "op": "stop_all", "frozen": True})

    def waits(self, request_id: int) -> bool:
        """Whether a request has no answer yet; the sandbox's end is one."""
        return request_id in self._pending

    def answer(self, request_id: int, reply: frames.Header, *, first: Callable[[], None] = lambda: None) -> bool:
        """Let requests in again and answer the one that held them, after `first`. False if the sandbox has ended."""
        if not self.waits(request_id):
            return False
        first()
        self._let_in()
        self._reply({"id": request_id, **reply}, b"")
        return True

    def fail(self, request_id: int, message: str) -> None:
        """The same with an error."""
        self.answer(request_id, {"error": message, "kind": "SandboxError", "errno": None})

    def _let_in(self) -> None:
        held, self._held = self._held or [], None
        if self._cgroup.freezes:
            self._cgroup.freeze(self._frozen)
        elif not self._frozen:
            self.notify({"id": _STILL, "op": "stop_all", "frozen": False})
        self.notify({"op": "frozen", "frozen": self._frozen})
        for header, payload in held:
            if self._door is not None:
                self._door.send(header, payload)

    def freeze(self, header: frames.Header) -> None:
        """Stop or continue all its processes; commands that have not begun wait, and clocks stop."""
        self._frozen = header["frozen"]
        if self._frozen:
            self._lifetime.stand_still()
        else:
            self._lifetime.run()
        self.notify({"op": "frozen", "frozen": self._frozen or self._held is not None})
        if self._cgroup.freezes:
            if self._held is None:  # else it does as was asked last when it is let go
                self._cgroup.freeze(self._frozen)
            self._send({"id": header["id"]}, b"")
        else:
            self.request({**header, "op": "stop_all"}, b"")

    def close(self, request_id: int, reason: str) -> None:
        """Kill it; reply when nothing is left of it."""
        self._closing.append(request_id)
        self.kill(reason)

    def kill(self, reason: str, death: Death | None = None) -> None:
        """End every process in it. What waits for a result gets `reason`."""
        if self._reason is not None:
            return  # dying or gone already
        self._reason, self.death = reason, death
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._outer_fd if self._first_fd is None else self._first_fd, signal.SIGKILL)
        self._reap_while_dying()
        if (self._frozen or self._held is not None) and self._cgroup.freezes:
            self._cgroup.freeze(False)  # the kill reached the sandbox; bwrap must run to see that

    def _reap_while_dying(self) -> None:
        """The sandbox's first process ends only when all others in it are reaped; those of a dead door are ours."""
        if not self._outer_gone:
            self._reap()
            self._reactor.call_later(_REMOVE_RETRY_S, self._reap_while_dying)

    def _outer_says(self) -> None:
        said = os.read(self._launched.up_fd, 16)
        if said == WANTS_IDS:
            try:
                map_range(self._launched.pid, self._ids)
                os.write(self._launched.ids_fd, b"!")
            except OSError as error:
                self.kill(f"cannot map its ids: {error}")
            return
        self._reactor.forget(self._launched.up_fd)
        if said and self._door_socket is not None:  # else bwrap failed, and says so when it has ended
            self._first_process_runs(self._door_socket)

    def _first_process_runs(self, door: socket.socket) -> None:
        self.first_pid = json.loads(os.read(self._launched.info_fd, 4096))["child-pid"]
        try:
            self._first_fd = os.pidfd_open(self.first_pid)
            let_in(door, self._first_fd)
        except OSError as error:  # killed since it said that it runs
            self.kill(f"its first process or its door is gone: {error}")
            return
        self._door = Connection(self._reactor, door, self._door_replies, self._door_ended)
        entries, content = self._files
        self._files = [], b""
        self._door.send({"id": self._start_id, "op": "put", "entries": entries}, content)

    def _door_replies(self, header: frames.Header, payload: bytes) -> None:
        if header["id"] == 0:
            self.kill(header["error"])
        elif header["id"] == _CENSUS and self._counted is not None:
            counted, self._counted = self._counted, None
            counted(header["living"])
        elif header["id"] == _STILL:
            still, self._stands_still = self._stands_still, None
            if still is not None:
                still()
        else:
            self._reply(header, payload)

    def _reply(self, header: frames.Header, payload: bytes) -> None:
        """Once per request: the door and the sandbox's end may both answer."""
        if header["id"] == self._start_id:
            self._start_id = None
            self._start_timer.cancel()
        if header["id"] in self._pending:
            self._pending.remove(header["id"])
            self._send(header, payload)

    def _door_ended(self) -> None:
        status = os.waitpid(self._door_pid, 0)[1]
        self._door_pid = 0
        self.kill(f"its door {describe_status(status)}")

    def _outer_ended(self) -> None:
        """bwrap ends after the first process, or takes it along."""
        self._outer_gone = True
        self._reactor.forget(self._outer_fd)
        status = os.waitpid(self._launched.pid, 0)[1]
        if self._reason is None:
            self._reason, self.death = f"bwrap {describe_status(status)}", _death(status)
        if self._first_fd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first_fd, signal.SIGKILL)
        self._close_door()
        said = self._stderr() if self._start_id is not None else ""
        message = f"{self._reason}: {said}" if said else self._reason
        for request_id in sorted(self._pending):
            problem = {"error": message, "kind": "SandboxError", "errno": None, "death": self.death}
            self._reply({"id": request_id, **problem}, b"")
        self._remove(_REMOVE_TRIES)

    def _close_door(self) -> None:
        if self._door is not None:
            self._door.close()
        elif self._door_socket is not None:
            self._door_socket.close()
        if self._door_pid:
            os.kill(self._door_pid, signal.SIGKILL)
            os.waitpid(self._door_pid, 0)
            self._door_pid = 0

    def _stderr(self) -> str:
        if not is_readable(self._launched.stderr_fd):
            return ""
        return os.read(self._launched.stderr_fd, _MAX_STDERR_BYTES).decode(errors="replace").strip()

    def _remove(self, tries: int) -> None:
        self._reap()
        first_gone = self._first_fd is None or is_readable(self._first_fd)
        if first_gone and self._cgroup.try_remove():
            self._leave(None)
        elif tries == 0:
            self._leave("processes outlive SIGKILL")
        else:
            self._reactor.call_later(_REMOVE_RETRY_S, lambda: self._remove(tries - 1))

    def _leave(self, problem: str | None) -> None:
        self._lifetime.end()
        self._reactor.forget(self._launched.up_fd)
        for fd in (*self._launched.fds, self._outer_fd):
            os.close(fd)
        if self._first_fd is not None:
            os.close(self._first_fd)
        if self.root is not None:
            self.root.close()
        self._on_gone()
        for request_id in self._closing:
            self._send({"id": request_id, "problem": problem}, b"")
