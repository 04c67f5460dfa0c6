"""The door of a sandbox: a process that has entered it, and does there what the owner asks.

Forked by the supervisor while the sandbox starts, it joins every namespace once that is up, but stays outside the
process tree: only children of a process that enters a pid namespace belong to it. So the agent can neither see, signal
nor impersonate it, and it is the true parent of each command: exit statuses come from the kernel. It ends when its
socket does.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
from collections import deque
from collections.abc import Callable

from agentrl.sandbox.supervisor import files, frames, seccomp, syscalls
from agentrl.sandbox.supervisor.command import ROOT_CAPABILITIES, Command, Place, Room
from agentrl.sandbox.supervisor.connection import Connection
from agentrl.sandbox.supervisor.crowd import count_since, kill_all, signal_all
from agentrl.sandbox.supervisor.execution import ExecRequest, Execution
from agentrl.sandbox.supervisor.processes import close_other_fds, run_and_exit
from agentrl.sandbox.supervisor.reactor import Reactor

MAX_OPEN_FILES = 1024
_COME_IN = b"!"


def open_door(room: Room) -> tuple[int, socket.socket]:
    """Fork a door, which waits for `let_in`. Returns its pid and the supervisor's end of its socket. Raises OSError."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        run_and_exit(lambda: _serve(room, theirs))
    theirs.close()
    return pid, ours


def let_in(sock: socket.socket, pidfd: int) -> None:
    """Have the door at the other end of `sock` enter the sandbox of this first process. Raises OSError."""
    socket.send_fds(sock, [_COME_IN], [pidfd])


def _serve(room: Room, sock: socket.socket) -> None:
    os.dup2(1, 2)  # the supervisor's 0 and 1 are /dev/null; its errors are not for here
    close_other_fds((0, 1, 2, sock.fileno(), *room.cgroup.fds))
    _, fds, _, _ = socket.recv_fds(sock, len(_COME_IN), 1)
    if not fds:
        return  # the sandbox did not come up
    try:
        _enter(room, fds[0])
    except OSError as error:
        message = {"id": 0, "error": f"cannot enter the sandbox: {error}", "kind": "SandboxError", "errno": error.errno}
        sock.sendall(frames.encode(message))
        return
    Door(room, sock).run()


def _enter(room: Room, pidfd: int) -> None:
    os.umask(0o022)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    syscalls.hide_memory()
    syscalls.setns(pidfd, syscalls.SANDBOX_NAMESPACES)
    os.close(pidfd)
    if room.ranged:
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    syscalls.hide_memory()
    syscalls.bound_capabilities(ROOT_CAPABILITIES if room.ranged else ())
    syscalls.forbid_new_privileges()
    if room.filter_program:  # the one that bwrap was given holds for its own children only
        seccomp.install(room.filter_program)


class Door:
    """Serves one sandbox: files at once, commands one after another."""

    def __init__(self, place: Place, sock: socket.socket) -> None:
        self._place = place
        self._reactor = Reactor()
        self._connection = Connection(self._reactor, sock, self._handle, self._reactor.stop)
        self._waiting: deque[tuple[int, Execution]] = deque()
        self._running: tuple[int, Execution] | None = None
        self._frozen = False
        self._operations: dict[str, Callable[[frames.Header, bytes], tuple[frames.Header, bytes]]] = {
            "put": self._put,
            "get": self._get,
            "list": self._list,
            "clear": self._clear,
            "probe": self._probe,
            "kill_all": self._kill_all,
            "stop_all": self._stop_all,
            "census": self._census,
        }

    def run(self) -> None:
        self._reactor.run()

    def _handle(self, header: frames.Header, payload: bytes) -> None:
        operation = header["op"]
        if operation == "exec":
            self._exec(header, payload)
        elif operation == "cancel":
            self._cancel(header["target"])
        elif operation == "frozen":
            self._set_frozen(header["frozen"])
        else:
            try:
                reply, data = self._operations[operation](header, payload)
            except OSError as error:
                reply = {"error": f"{error.filename}: {error.strerror}", "kind": "FileError", "errno": error.errno}
                data = b""
            self._connection.send({"id": header["id"], **reply}, data)

    def _exec(self, header: frames.Header, payload: bytes) -> None:
        request_id = header["id"]
        command = Command(header["argv"], header["cwd"], header["env"], header["user"], header["limits"])
        stdin = payload[: header["stdin_bytes"]] if header["stdin_bytes"] is not None else None
        handoff = payload[header["stdin_bytes"] or 0 :] if header["handoff"] else None
        request = ExecRequest(command, stdin, handoff, header["timeout_s"], header["max_output_bytes"])

        def done(result: frames.Header, output: bytes) -> None:
            self._connection.send({"id": request_id, **result}, output)
            if self._running is not None and self._running[0] == request_id:
                self._running = None
                self._start_next()

        self._waiting.append((request_id, Execution(self._reactor, self._place, request, done)))
        self._start_next()

    def _start_next(self) -> None:
        while self._running is None and self._waiting and not self._frozen:
            self._running = self._waiting.popleft()
            execution = self._running[1]
            try:
                execution.start()
            except OSError as error:  # no descriptors or processes left
                execution.fail(f"cannot start a command: {error}")

    def _cancel(self, target: int) -> None:
        """Kill the command, or drop it if it has not begun."""
        if self._running is not None and self._running[0] == target:
            self._running[1].kill()
        for entry in [entry for entry in self._waiting if entry[0] == target]:
            self._waiting.remove(entry)
            entry[1].fail("cancelled before it began")

    def _set_frozen(self, frozen: bool) -> None:
        if frozen == self._frozen:
            return
        self._frozen = frozen
        if self._running is not None:
            (self._running[1].pause if frozen else self._running[1].resume)()
        self._start_next()

    def _put(self, header: frames.Header, payload: bytes) -> tuple[frames.Header, bytes]:
        files.put(header["entries"], payload)
        return {}, b""

    def _get(self, header: frames.Header, payload: bytes) -> tuple[frames.Header, bytes]:
        found = files.get(header["path"], header["offset"], header["max_bytes"])
        return ({"found": False}, b"") if found is None else ({"found": True, "size": found[0]}, found[1])

    def _list(self, header: frames.Header, payload: bytes) -> tuple[frames.Header, bytes]:
        listing = files.listing(header["path"], header["max_entries"])
        if listing is None:
            return {"found": False}, b""
        reply = {"found": True, "skipped": listing.skipped, "more": listing.more}
        return reply, json.dumps(listing.entries).encode()

    def _clear(self, header: frames.Header, payload: bytes) -> tuple[frames.Header, bytes]:
        files.clear(header["path"], header["mode"])
        return {}, b""

    def _probe(self, header: frames.Header, payload: bytes) -> tuple[frames.Header, bytes]:
        return {"alive": os.path.isdir("/") and os.path.exists("/proc/1/stat")}, b""  # noqa: PTH110, PTH112

    def _kill_all(self, header: frames.Header, payload: bytes) -> tuple[frames.Header, bytes]:
        killed, left = kill_all(self._place.crowd)
        if left:
            return {"error": f"{left} processes outlive SIGKILL", "kind": "SandboxError", "errno": None}, b""
        return {"killed": killed}, b""

    def _census(self, header: frames.Header, payload: bytes) -> tuple[frames.Header, bytes]:
        """How many processes run beside the first."""
        return {"living": count_since(self._place.crowd, frozenset())}, b""

    def _stop_all(self, header: frames.Header, payload: bytes) -> tuple[frames.Header, bytes]:
        """Freeze or thaw, where no freezer does it."""
        signal_all(self._place.crowd, signal.SIGSTOP if header["frozen"] else signal.SIGCONT)
        return {}, b""
