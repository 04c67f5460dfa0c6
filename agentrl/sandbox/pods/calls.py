"""Operations of the runner in one pod, over whatever carries them: begun at most once, believed only whole.

An operation on files may be done twice, so it is asked again when its connection breaks. A command is asked again only
as long as it has certainly not begun.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Protocol, TypeAlias

from agentrl.clock import monotonic
from agentrl.kubernetes.errors import Conflict, Invalid, KubernetesError, NotFound
from agentrl.kubernetes.exec import Channel, Ending
from agentrl.kubernetes.limits import pause_s
from agentrl.sandbox.pods.words import RUNNER, Answer, Job, Lost, Outcome, answer, begun_line, job_text, outcome

_TAIL_BYTES = 2 << 20
"""More than what may follow a command's output: a session's state, and the last line."""
_STATE = "/.agentrl/state/own"


class Stream(Protocol):
    """A program in a pod, as `agentrl.kubernetes.exec.ExecStream` carries it."""

    @property
    def ending(self) -> Ending: ...

    async def send(self, data: bytes) -> None: ...

    async def end_input(self) -> None: ...

    def frames(self) -> AsyncIterator[tuple[Channel, bytes]]: ...

    async def close(self) -> None: ...


OpenStream: TypeAlias = Callable[[list[str]], Awaitable[Stream]]
"""Starts a program in the pod. Raises KubernetesError; then it has not begun."""

Turn: TypeAlias = Callable[[], AbstractAsyncContextManager[None]]
"""A place among what may be begun at once on the pod's node."""


class CallError(Exception):
    """An operation could not be done: the pod did not answer in time, or cannot."""

    def __init__(self, message: str, *, hopeless: bool = False) -> None:
        """`hopeless`: there is no such pod, or it runs nothing."""
        super().__init__(message)
        self.hopeless = hopeless


@dataclass
class _Heard:
    """What a stream wrote, bounded: the beginning, and the end."""

    most: int
    kept: dict[Channel, bytearray] = field(
        default_factory=lambda: {Channel.STDOUT: bytearray(), Channel.STDERR: bytearray()}
    )

    def add(self, channel: Channel, data: bytes) -> None:
        kept = self.kept[channel]
        kept += data
        if len(kept) > self.most + 2 * _TAIL_BYTES:  # past what the runner lets through: something else wrote
            del kept[self.most : len(kept) - _TAIL_BYTES]

    @property
    def stdout(self) -> bytes:
        return bytes(self.kept[Channel.STDOUT])

    @property
    def stderr(self) -> bytes:
        return bytes(self.kept[Channel.STDERR])


class Calls:
    """What can be asked of the runner in one pod."""

    def __init__(self, open_stream: OpenStream, turn: Turn, *, entropy: Random) -> None:
        self._open_stream = open_stream
        self._turn = turn
        self._entropy = entropy

    async def ask(self, operation: str, payload: bytes = b"", *, script: str | None = None, within_s: float) -> Answer:
        """An operation that is no command. Raises CallError."""
        deadline, attempt = monotonic() + within_s, 0
        problem: Exception | str = "no answer"
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    async with self._turn():
                        found = await self._ask_once(operation, payload, script)
                if isinstance(found, Answer):
                    return found
                problem = found
            except TimeoutError:
                raise CallError(f"no answer to {operation} in {within_s:g} s: {problem}") from None
            except KubernetesError as error:
                if isinstance(error, NotFound):
                    raise CallError(str(error), hopeless=True) from error
                problem = error
            pause = pause_s(attempt, self._entropy.random())
            if monotonic() + pause > deadline:
                raise CallError(f"no answer to {operation} in {within_s:g} s: {problem}")
            attempt += 1
            await asyncio.sleep(pause)

    async def _ask_once(self, operation: str, payload: bytes, script: str | None) -> Answer | str:
        """The answer, or why there is none."""
        secret = secrets.token_hex(16)
        text = b"" if script is None else script.encode(errors="surrogateescape")
        stream = await self._open_stream(["/bin/sh", RUNNER, operation])
        heard = _Heard(most=1 << 62)
        sending = asyncio.create_task(_send(stream, f"{secret} {len(text)}\n".encode() + text + payload, whole=True))
        try:
            async for channel, data in stream.frames():
                heard.add(channel, data)
        finally:
            sending.cancel()
            await stream.close()
        found = answer(secret, heard.stdout, heard.stderr)
        if found is not None:
            return found
        said = heard.stderr.decode(errors="replace").strip()[-300:]
        return stream.ending.message or said or "the connection ended without an answer"

    async def start(
        self, job: Job, *, stdin: bytes | None, handoff: bytes | None, max_output_bytes: int, within_s: float
    ) -> Command | Outcome:
        """Begin a command. Returns it when it has begun; or what came of it when it ended before that was heard.

        Raises CallError when it cannot be begun in time, ValueError for a command that no command line can hold.
        """
        number = secrets.token_hex(8)
        text = job_text(job, f"{_STATE}/{number}")
        parts = [text, stdin, handoff]
        sizes = " ".join("-1" if part is None else str(len(part)) for part in parts)
        payload = b"".join(part for part in parts if part is not None)
        deadline, attempt = monotonic() + within_s, 0
        while True:
            secret = secrets.token_hex(16)
            try:
                async with asyncio.timeout_at(deadline):
                    async with self._turn():
                        stream = await self._open_stream(["/bin/sh", RUNNER, "exec", number, str(max_output_bytes)])
                        command = Command(stream, secret, max_output_bytes)
                        found = await command.begin(f"{secret} {sizes}\n".encode() + payload)
                if not isinstance(found, Lost) or found.begun:
                    return command if found is None else found
                problem: object = found.why
            except TimeoutError:
                raise CallError(f"no command could be begun in {within_s:g} s") from None
            except KubernetesError as error:
                if isinstance(error, NotFound):
                    raise CallError(str(error), hopeless=True) from error
                if isinstance(error, Invalid | Conflict) and error.status != 400:
                    raise CallError(str(error)) from error
                problem = error
            pause = pause_s(attempt, self._entropy.random())
            if monotonic() + pause > deadline:
                raise CallError(f"no command could be begun in {within_s:g} s: {problem}")
            attempt += 1
            await asyncio.sleep(pause)


class Command:
    """One command, on one connection."""

    def __init__(self, stream: Stream, secret: str, max_output_bytes: int) -> None:
        self._stream = stream
        self._secret = secret
        self._heard = _Heard(max_output_bytes)
        self._why = ""
        self._frames = stream.frames()

    async def begin(self, payload: bytes) -> Outcome | None:
        """Send everything and wait until it has begun: None. Otherwise, what came of it."""
        sending = asyncio.create_task(_send(self._stream, payload))
        begun = begun_line(self._secret)
        try:
            while len(self._heard.stderr) < len(begun) and await self._more():
                pass
            if self._heard.stderr.startswith(begun):
                return None
            while await self._more():
                pass
            return self._outcome()
        except BaseException:
            await self._stream.close()
            raise
        finally:
            sending.cancel()

    async def end(self) -> Outcome:
        """Wait until it has ended, or the connection has."""
        try:
            while await self._more():
                pass
        finally:
            await self._stream.close()
        return self._outcome()

    async def kill(self) -> None:
        """Have it killed, with all that it started; its end follows."""
        with suppress(KubernetesError):  # then its end does too
            await self._stream.send(b"kill\n")

    async def drop(self) -> None:
        """Hang up. The runner kills it then."""
        await self._stream.close()

    async def _more(self) -> bool:
        """Hear what comes next; False at the end."""
        try:
            channel, data = await anext(self._frames)
        except StopAsyncIteration:
            return False
        except KubernetesError as error:
            self._why = str(error)
            return False
        self._heard.add(channel, data)
        return True

    def _outcome(self) -> Outcome:
        return outcome(self._secret, self._heard.stdout, self._heard.stderr, self._stream.ending, why=self._why)


async def _send(stream: Stream, data: bytes, *, whole: bool = False) -> None:
    """`whole`: nothing follows, and its end means nothing."""
    with suppress(KubernetesError):  # what is read tells more
        await stream.send(data)
        if whole:
            await stream.end_input()
