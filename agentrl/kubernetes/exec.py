"""A command in a pod, over the websocket that `pods/exec` becomes: channels of bytes, and the server's word on its end.

Frames are a channel's number and bytes. Version 5 of the protocol can close stdin alone, version 4 cannot: so who uses
this should say how long its input is. The error channel comes once, at the end, and may be empty or
missing where something between us and the container broke: then nobody knows how the command ended, and `Ending` says
just that.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum

import aiohttp

from agentrl.kubernetes.client import KubernetesClient, Request
from agentrl.kubernetes.errors import Unreachable
from agentrl.kubernetes.resources import PODS

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_CHUNK_BYTES = 32 << 10
_CLOSE_TIMEOUT_S = 5.0


class Channel(IntEnum):
    """What the first byte of a frame says (k8s.io/apimachinery, remotecommand)."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2
    ERROR = 3
    RESIZE = 4
    CLOSE = 255


class How(StrEnum):
    """What the error channel said of a command's end."""

    EXITED = "exited"
    """With an exit code; of a shell, 128 + a signal's number."""
    FAILED = "failed"
    """It could not be run, or whoever watched it failed: no such program, no such container, a broken runtime."""
    UNSAID = "unsaid"
    """Nothing: the transport broke before, or an old server left it out."""


@dataclass(frozen=True)
class Ending:
    """How a command ended, as the server told it."""

    how: How
    exit_code: int | None = None
    message: str = ""


UNSAID = Ending(How.UNSAID)


def ending(frame: bytes) -> Ending:
    """What a frame of the error channel says: a Status object, or nothing."""
    if not frame.strip():
        return UNSAID
    try:
        status = json.loads(frame)
        if status.get("status") == "Success":
            return Ending(How.EXITED, 0)
        causes = (status.get("details") or {}).get("causes") or []
        codes = [cause.get("message", "") for cause in causes if cause.get("reason") == "ExitCode"]
        if status.get("reason") == "NonZeroExitCode" and codes and codes[0].isdigit():
            return Ending(How.EXITED, int(codes[0]))
        return Ending(How.FAILED, None, str(status.get("message") or status))
    except (ValueError, AttributeError):  # not a Status: older servers send plain text
        return Ending(How.FAILED, None, frame.decode(errors="replace").strip())


class ExecStream:
    """One running command. `frames` ends when the connection does; then `ending` says what is known."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, what: str) -> None:
        self._socket = socket
        self._what = what
        self._sending = asyncio.Lock()
        self.ending = UNSAID
        self.broken = False
        """Whether the connection ended in disorder."""

    async def send(self, data: bytes) -> None:
        """Write to its stdin. Raises Unreachable."""
        try:
            async with self._sending:  # frames of one write are not interleaved with another's
                for start in range(0, len(data), _CHUNK_BYTES):
                    await self._socket.send_bytes(bytes([Channel.STDIN]) + data[start : start + _CHUNK_BYTES])
        except (aiohttp.ClientError, OSError, RuntimeError) as error:  # RuntimeError: it is closing
            raise Unreachable(f"{self._what}: {error or type(error).__name__}") from error

    async def end_input(self) -> None:
        """Close its stdin alone, where the protocol can (version 5); else nothing happens. Raises Unreachable."""
        if self._socket.protocol == PROTOCOLS[0]:
            try:
                await self._socket.send_bytes(bytes([Channel.CLOSE, Channel.STDIN]))
            except (aiohttp.ClientError, OSError, RuntimeError) as error:
                raise Unreachable(f"{self._what}: {error or type(error).__name__}") from error

    async def frames(self) -> AsyncIterator[tuple[Channel, bytes]]:
        """What it writes to stdout and stderr."""
        while True:
            try:
                message = await self._socket.receive()
            except (aiohttp.ClientError, OSError) as error:
                self.broken = True
                raise Unreachable(f"{self._what}: {error or type(error).__name__}") from error
            if message.type not in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT):
                self.broken = message.type is aiohttp.WSMsgType.ERROR or self._socket.close_code not in (1000, None)
                return
            data: bytes = message.data if isinstance(message.data, bytes) else message.data.encode()
            if not data:
                continue
            if data[0] == Channel.ERROR:
                self.ending = ending(data[1:])
            elif data[0] in (Channel.STDOUT, Channel.STDERR) and len(data) > 1:
                yield Channel(data[0]), data[1:]

    async def close(self) -> None:
        """Hang up: its stdin ends. Never raises."""
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._socket.close()
        except (aiohttp.ClientError, OSError, TimeoutError):
            return


async def exec_in_pod(
    client: KubernetesClient, pod: str, command: list[str], *, container: str, namespace: str | None = None
) -> ExecStream:
    """Start a command, with stdin, without a terminal. Raises KubernetesError; then it has not begun."""
    where = namespace or client.namespace
    query = [("command", word) for word in command]
    query += [("container", container), ("stdin", "true"), ("stdout", "true"), ("stderr", "true"), ("tty", "false")]
    asked = Request(
        "GET", PODS.path(where, pod, "exec"), what=f"run a command in pod {pod} in {where}", counted="pods/exec"
    )
    return ExecStream(await client.websocket(asked, query=query, protocols=PROTOCOLS), asked.what)
