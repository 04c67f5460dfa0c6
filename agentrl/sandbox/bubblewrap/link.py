"""The owner's end of the supervisor's socket: starts the process, sends requests, hands out replies."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import subprocess
from typing import Any

from agentrl.errors import SandboxError, UserError
from agentrl.sandbox.bubblewrap import bare_python
from agentrl.sandbox.death import Death
from agentrl.sandbox.supervisor import frames

_START_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 15.0


class SupervisorLink:
    """One supervisor process. Make it with `open_link`."""

    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[tuple[frames.Header, bytes]]] = {}
        self._lost: str | None = None
        self._listener = asyncio.create_task(self._listen())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lost(self) -> bool:
        """Whether the supervisor is gone, and its sandboxes with it."""
        return self._lost is not None

    async def request(self, op: str, payload: bytes = b"", **fields: Any) -> tuple[frames.Header, bytes]:
        """Send one request and wait for its reply. Cancelling an exec kills the command.

        Raises SandboxError when the sandbox or the supervisor is gone or broken; OSError when the sandbox's files
        refuse a put; UserError for a user that is not there.
        """
        if self._lost is not None:
            raise SandboxError(self._lost, death=Death.UNREACHABLE)
        request_id = next(self._ids)
        future: asyncio.Future[tuple[frames.Header, bytes]] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = future
        self._writer.write(frames.encode({"id": request_id, "op": op, **fields}, payload))
        try:
            with contextlib.suppress(ConnectionError):  # its end is told to all who wait by the listener
                await self._writer.drain()
            header, output = await future
        except asyncio.CancelledError:
            if op == "exec" and self._lost is None:
                self._writer.write(
                    frames.encode({"id": next(self._ids), "op": "cancel", "box": fields["box"], "target": request_id})
                )
            raise
        finally:
            self._pending.pop(request_id, None)
        if "error" in header:
            raise _error(header)
        return header, output

    async def close(self) -> None:
        """End the supervisor, and with it all its sandboxes, and wait until it is gone. Who waits gets SandboxError."""
        self._lose("the sandboxes' supervisor was closed")
        self._writer.close()
        self._listener.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._listener
        await asyncio.to_thread(self._wait_or_kill)

    def _wait_or_kill(self) -> None:
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    async def _listen(self) -> None:
        try:
            while True:
                header, payload = await _read_frame(self._reader)
                future = self._pending.get(header["id"])
                if future is not None and not future.done():
                    future.set_result((header, payload))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:  # also when the loop ends and cancels all tasks: those that close sandboxes must not wait for ever
            self._lose("the sandboxes' supervisor process ended")
            self._writer.close()

    def _lose(self, why: str) -> None:
        self._lost = self._lost or why
        for future in self._pending.values():
            if not future.done():
                future.set_exception(SandboxError(self._lost, death=Death.UNREACHABLE))


async def open_link(settings: dict[str, Any], *, module: str = "main") -> tuple[SupervisorLink, frames.Header]:
    """Start a supervisor, a module of `sandbox.supervisor`, with the settings that its `main` takes; and its greeting.

    Raises SandboxError if it does not greet.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(  # noqa: ASYNC220 (vfork and exec take a millisecond)
            bare_python.command(module, "main", str(theirs.fileno()), json.dumps(settings)),
            env=bare_python.environment(),
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C on the terminal is the owner's to handle
        )
    reader, writer = await asyncio.open_unix_connection(sock=ours, limit=1 << 20)
    try:
        greeting, _ = await asyncio.wait_for(_read_frame(reader), _START_TIMEOUT_S)
    except BaseException as error:
        process.kill()
        process.wait()
        writer.close()
        if isinstance(error, TimeoutError | asyncio.IncompleteReadError | ConnectionError):
            raise SandboxError("the sandboxes' supervisor process did not start") from error
        raise
    return SupervisorLink(process, reader, writer), greeting


async def _read_frame(reader: asyncio.StreamReader) -> tuple[frames.Header, bytes]:
    num_header, num_payload = frames.PREFIX.unpack(await reader.readexactly(frames.PREFIX.size))
    header: frames.Header = json.loads(await reader.readexactly(num_header))
    return header, await reader.readexactly(num_payload)


def _error(header: frames.Header) -> Exception:
    message, kind, number = header["error"], header["kind"], header["errno"]
    if kind == "FileError":
        return OSError(number, message)
    if kind == "UnknownUser":
        return UserError(message)
    death = header.get("death")
    return SandboxError(message, death=Death(death) if death else None)
