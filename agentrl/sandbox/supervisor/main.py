"""The supervisor's entry: requests in, replies out, until the owner is gone.

Requests are frames {"id", "op", ...}; each gets one reply {"id", ...} or {"id", "error", "kind", "errno"}. When the
socket or the owner's process ends, every sandbox is killed, its control groups are removed, and the supervisor exits.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict

from agentrl.sandbox.supervisor import frames, inside, syscalls
from agentrl.sandbox.supervisor.box import Box
from agentrl.sandbox.supervisor.cgroups import Cgroup, Hierarchies, Limits, create_base, remove_base
from agentrl.sandbox.supervisor.execution import ExecRequest, Execution
from agentrl.sandbox.supervisor.launch import IdMap
from agentrl.sandbox.supervisor.processes import rename
from agentrl.sandbox.supervisor.reactor import Reactor

_CHUNK_BYTES = 1 << 18
_LAST_WAIT_S = 10.0
_TITLE = "agentrl sandboxes"
_CLOSED = "closed by its owner"


class Server:
    """Serves one owner over one socket."""

    def __init__(self, sock: socket.socket, base_name: str) -> None:
        self._reactor = Reactor()
        self._socket = sock
        self._frames = frames.FrameBuffer()
        self._out = bytearray()
        self._out_waits = False
        self._boxes: dict[str, Box] = {}
        self._lost: dict[str, str] = {}
        """Why sandboxes ended that their owner has not closed yet."""
        self._executions: dict[int, tuple[Box, Execution]] = {}
        self._hierarchies = create_base(base_name) if base_name else Hierarchies(0)
        self._ending = False
        self._operations: dict[str, Callable[[int, frames.Header, bytes], None]] = {
            "start": self._start,
            "exec": self._exec,
            "cancel": self._cancel,
            "put": self._put,
            "get": self._get,
            "probe": self._probe,
            "kill_all": self._kill_all,
            "freeze": self._freeze,
            "close": self._close,
        }

    def run(self) -> None:
        """Serve until the owner is gone and nothing is left of its sandboxes."""
        self._socket.setblocking(False)
        owner = os.pidfd_open(os.getppid())
        self._reactor.on_readable(owner, self._owner_gone)
        self._reactor.on_readable(self._socket.fileno(), self._readable)
        self._send({"id": 0, "hierarchies": asdict(self._hierarchies), "bases": self._hierarchies.bases()})
        self._reactor.run()
        for base in self._hierarchies.bases():
            remove_base(base)

    def _readable(self) -> None:
        try:
            data = self._socket.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._owner_gone()
            return
        for header, payload in self._frames.feed(data):
            self._handle(header, payload)

    def _handle(self, header: frames.Header, payload: bytes) -> None:
        request_id = header["id"]
        try:
            self._operations[header["op"]](request_id, header, payload)
        except OSError as error:  # no such sandbox, no descriptors or processes left, a control group refused
            kind = "SandboxError"
            self._send({"id": request_id, "error": str(error), "kind": kind, "errno": error.errno})

    def _box(self, header: frames.Header) -> Box:
        name = header["box"]
        if name not in self._boxes:
            raise ProcessLookupError(f"the sandbox is gone: {self._lost.get(name, _CLOSED)}")
        return self._boxes[name]

    def _replier(self, request_id: int) -> Callable[[frames.Header, bytes], None]:
        return lambda header, payload: self._send({"id": request_id, **header}, payload)

    def _start(self, request_id: int, header: frames.Header, payload: bytes) -> None:
        name = header["box"]
        limits = Limits(header["memory_bytes"], header["pids"], header["cpus"])
        cgroup = Cgroup(self._hierarchies, name, limits)
        try:
            box = Box(
                self._reactor,
                argv=header["argv"],
                ids=IdMap(*header["ids"]),
                cgroup=cgroup,
                limits=limits,
                rlimits=self._hierarchies.version == 0,
                lifetime_s=header["lifetime_s"],
                on_gone=lambda: self._gone(name),
            )
        except OSError:
            cgroup.try_remove()
            raise
        self._boxes[name] = box
        box.when_up(header["timeout_s"], self._replier(request_id))

    def _exec(self, request_id: int, header: frames.Header, payload: bytes) -> None:
        def done(result: frames.Header, output: bytes) -> None:
            self._executions.pop(request_id, None)
            self._send({"id": request_id, **result}, output)

        command = inside.Command(header["argv"], header["cwd"], header["env"], header["user"])
        stdin = payload if header["stdin"] else None
        request = ExecRequest(command, stdin, header["timeout_s"], header["max_output_bytes"])
        box = self._box(header)
        execution = box.execute(request, done)
        self._executions[request_id] = (box, execution)

    def _cancel(self, request_id: int, header: frames.Header, payload: bytes) -> None:
        found = self._executions.get(header["target"])
        if found is not None:
            found[0].cancel(found[1])
        self._send({"id": request_id})

    def _put(self, request_id: int, header: frames.Header, payload: bytes) -> None:
        entries = header["entries"]
        self._visit(request_id, header, lambda room: inside.put(room, entries, payload))

    def _get(self, request_id: int, header: frames.Header, payload: bytes) -> None:
        path, max_bytes = header["path"], header["max_bytes"]
        self._visit(request_id, header, lambda room: inside.get(room, path, max_bytes))

    def _probe(self, request_id: int, header: frames.Header, payload: bytes) -> None:
        self._visit(request_id, header, lambda _: inside.probe())

    def _kill_all(self, request_id: int, header: frames.Header, payload: bytes) -> None:
        self._visit(request_id, header, lambda _: inside.kill_all())

    def _visit(self, request_id: int, header: frames.Header, body: Callable[[inside.Room], inside.Report]) -> None:
        self._box(header).visit(body, header["timeout_s"], self._replier(request_id))

    def _freeze(self, request_id: int, header: frames.Header, payload: bytes) -> None:
        self._box(header).freeze(header["frozen"], header["timeout_s"], self._replier(request_id))

    def _close(self, request_id: int, header: frames.Header, payload: bytes) -> None:
        box = self._boxes.get(header["box"])
        if box is None:
            self._lost.pop(header["box"], None)
            self._send({"id": request_id, "problem": None})
            return
        box.when_gone(lambda problem: self._send({"id": request_id, "problem": problem}))
        box.kill(_CLOSED)

    def _gone(self, name: str) -> None:
        reason = self._boxes.pop(name).reason
        if reason != _CLOSED:
            self._lost[name] = reason
        if self._ending and not self._boxes:
            self._reactor.stop()

    def _send(self, header: frames.Header, payload: bytes = b"") -> None:
        if self._ending:
            return
        self._out += frames.encode(header, payload)
        self._flush()

    def _flush(self) -> None:
        try:
            sent = self._socket.send(self._out)
        except BlockingIOError:
            sent = 0
        except ConnectionError:
            return  # the socket's end is read next
        del self._out[:sent]
        if self._out and not self._out_waits:
            self._out_fd = os.dup(self._socket.fileno())
            self._reactor.on_writable(self._out_fd, self._flush)
        elif not self._out and self._out_waits:
            self._reactor.forget(self._out_fd)
            os.close(self._out_fd)
        self._out_waits = bool(self._out)

    def _owner_gone(self) -> None:
        if self._ending:
            return
        self._ending = True
        self._reactor.forget(self._socket.fileno())
        self._reactor.call_later(_LAST_WAIT_S, self._reactor.stop)
        if not self._boxes:
            self._reactor.stop()
        for box in list(self._boxes.values()):
            box.kill("the owner is gone")


def main() -> None:
    """Arguments: descriptor of the socket, name of the base control group (empty: use none)."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # ends by its owner's end only, so that it can clean up
    socket_fd, base_name = int(sys.argv[1]), sys.argv[2]
    rename(_TITLE)
    syscalls.leave_session_keyring()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    server = Server(socket.socket(fileno=socket_fd), base_name)
    gc.freeze()
    server.run()
