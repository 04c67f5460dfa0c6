"""``pods/exec`` over WebSocket: channels 0 to 3, and in v5 the closing of one channel."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import msgspec
from aiohttp import WSMsgType, web

from . import errors
from .access import User
from .errors import Object
from .http import TRUE
from .kubelet import Kubelet
from .resources import PODS, Target
from .runtime import CannotStart, Process

V4, V5 = "v4.channel.k8s.io", "v5.channel.k8s.io"
STDIN, STDOUT, STDERR, ERROR, CLOSE = 0, 1, 2, 3, 255
CHUNK_BYTES = 32 * 1024


class Dropped(Exception):
    """The connection is to be cut now."""


@dataclass
class Fault:
    """``refuse``: no connection. ``drop``: cut after so many bytes of output. ``silent``: nothing on channel 3."""

    kind: str
    left: int | None
    after_bytes: int = 0


@dataclass
class ExecHandler:
    """Answers exec requests."""

    kubelet: Kubelet
    faults: list[Fault] = field(default_factory=list)

    def break_next(self, kind: str, times: int | None, after_bytes: int) -> None:
        if kind not in ("refuse", "drop", "silent"):
            raise ValueError(f"exec fails by refuse, drop or silent, not by {kind}")
        self.faults.append(Fault(kind, times, after_bytes))

    async def __call__(self, request: web.Request, user: User, target: Target) -> web.StreamResponse:
        query = request.query
        command = query.getall("command", [])
        pod = self.kubelet.store.get(PODS, target.namespace, target.name)
        container = choose_container(pod, query.get("container", ""))
        if not command:
            raise errors.bad_request("you must specify at least 1 command for the pod exec")
        if query.get("tty") in TRUE:
            raise errors.bad_request("the fake cluster executes without a terminal: tty=false")
        if request.headers.get("Upgrade", "").lower() != "websocket":
            raise errors.bad_request("Upgrade request required")
        fault = self._fault()
        if fault is not None and fault.kind == "refuse":
            raise errors.internal("error dialing backend: dial tcp 10.0.0.1:10250: connect: connection refused")
        asked = [one.strip() for one in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        protocol = next((one for one in (V5, V4) if one in asked), None)
        if protocol is None:
            raise errors.bad_request(f"unable to upgrade: unknown protocols: {asked}")
        missing = self._missing(pod, container)
        if missing is not None and protocol == V4:
            raise errors.internal(f"unable to upgrade connection: {missing}")
        socket = web.WebSocketResponse(protocols=(protocol,), max_msg_size=0, autoclose=False)
        await socket.prepare(request)
        session = Session(socket, fault)
        if missing is not None:
            await session.end(errors.internal(f"unable to upgrade connection: {missing}").status)
            return socket
        wants = {
            channel
            for channel, key in ((STDIN, "stdin"), (STDOUT, "stdout"), (STDERR, "stderr"))
            if query.get(key) in TRUE
        }
        try:
            await session.run(self.kubelet, pod, container, command, wants)
        except (Dropped, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
        return socket

    def _missing(self, pod: Object, container: str) -> str | None:
        worker = self.kubelet.workers.get(pod["metadata"]["uid"])
        if worker is None or container not in worker.running:
            return f'container not found ("{container}")'
        return None

    def _fault(self) -> Fault | None:
        if not self.faults:
            return None
        fault = self.faults[0]
        if fault.left is not None:
            fault.left -= 1
            if fault.left <= 0:
                self.faults.remove(fault)
        return fault


def choose_container(pod: Object, name: str) -> str:
    """The container that a request means.

    Raises:
        ApiError: 400, there is no such container, or several and none is named.
    """
    names = [one["name"] for one in pod["spec"]["containers"]]
    others = [one["name"] for one in pod["spec"].get("initContainers") or []]
    if name:
        if name not in names + others:
            raise errors.bad_request(f"container {name} is not valid for pod {pod['metadata']['name']}")
        return name
    if len(names) > 1:
        shown = f"choose one of: [{' '.join(names)}]" + (
            f" or one of the init containers: [{' '.join(others)}]" if others else ""
        )
        raise errors.bad_request(f"a container name must be specified for pod {pod['metadata']['name']}, {shown}")
    return str(names[0])


class Session:
    """One command over one socket."""

    def __init__(self, socket: web.WebSocketResponse, fault: Fault | None) -> None:
        self._socket = socket
        self._fault = fault
        self._sent = 0

    async def run(self, kubelet: Kubelet, pod: Object, container: str, command: list[str], wants: set[int]) -> None:
        running = kubelet.workers[pod["metadata"]["uid"]].running[container]
        if STDOUT in wants:
            await self._send(STDOUT, b"")  # tells the client that the connection stands
        try:
            process = await running.execute(command, stdin=STDIN in wants)
        except CannotStart as error:
            said = (
                "error executing command in container: failed to exec in container: failed to start exec: OCI runtime "
                f"exec failed: exec failed: {error}"
            )
            await self.end(errors.internal(f"Internal error occurred: {said}").status)
            return
        reading = asyncio.ensure_future(self._read(process))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._write(process.stdout, STDOUT if STDOUT in wants else None))
                group.create_task(self._write(process.stderr, STDERR if STDERR in wants else None))
            code = await process.wait()
        except* (Dropped, ConnectionError):
            raise Dropped from None
        finally:
            reading.cancel()
        await self.end(exit_status(command, code))

    async def end(self, status: Object) -> None:
        """Say how it ended on the error channel, and close."""
        silent = self._fault is not None and self._fault.kind == "silent"
        if not silent:
            await self._send(ERROR, msgspec.json.encode(status))
        await self._socket.close()

    async def _read(self, process: Process) -> None:
        """Bring standard input to the command. The command outlives a client that goes away; its input ends."""
        stdin = process.stdin
        async for message in self._socket:
            if message.type != WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel == STDIN and stdin is not None:
                try:
                    stdin.write(data)
                    await stdin.drain()
                except ConnectionError:
                    stdin = None
            elif channel == CLOSE and data[:1] == bytes([STDIN]) and stdin is not None:
                stdin.close()
                stdin = None
        if stdin is not None:
            stdin.close()

    async def _write(self, reader: asyncio.StreamReader, channel: int | None) -> None:
        while data := await reader.read(CHUNK_BYTES):
            if channel is None:
                continue
            if self._fault is not None and self._fault.kind == "drop":
                room = self._fault.after_bytes - self._sent
                if room < len(data):
                    if room > 0:
                        await self._send(channel, data[:room])
                    raise Dropped
            self._sent += len(data)
            await self._send(channel, data)
        if self._fault is not None and self._fault.kind == "drop":
            raise Dropped

    async def _send(self, channel: int, data: bytes) -> None:
        try:
            await self._socket.send_bytes(bytes([channel]) + data)
        except (RuntimeError, ConnectionError) as error:
            raise Dropped from error


def exit_status(command: list[str], code: int) -> Object:
    """What the error channel says of an exit code."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    said = f"error executing command [{' '.join(command)}], exit code {code}"
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: {said}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }
