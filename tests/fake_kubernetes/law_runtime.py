"""Containers that are no processes: they run as long as the law says. For thousands of pods."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from .law import PodLaw, draw
from .runtime import CannotStart, ContainerPlan, Process


@dataclass(frozen=True)
class ExecAnswer:
    """What a command says where nothing runs."""

    stdout: bytes = b""
    stderr: bytes = b""
    exit_code: int = 0


ExecLaw = Callable[[str, list[str], bytes], ExecAnswer]
"""(pod's name, command, standard input) -> the answer."""


@dataclass
class LawRuntime:
    """Starts containers that only exist as timers."""

    has_processes: ClassVar[bool] = False

    law: Callable[[], PodLaw]
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    answer: ExecLaw = lambda _pod, _command, _stdin: ExecAnswer()

    async def start(self, plan: ContainerPlan) -> LawContainer:
        return LawContainer(self, plan)


class LawContainer:
    """Ends when its time is over, or some time after it was told to."""

    def __init__(self, runtime: LawRuntime, plan: ContainerPlan) -> None:
        self._runtime = runtime
        self._pod = plan.pod["metadata"]["name"]
        self._over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        law = runtime.law()
        if law.exit_after_s is not None:
            self._end_later(draw(law.exit_after_s, runtime.chance), law.exit_code)

    async def wait(self) -> int:
        return await asyncio.shield(self._over)

    def terminate(self) -> None:
        self._end_later(draw(self._runtime.law().stop_s, self._runtime.chance), 143)

    def kill(self, exit_code: int = 137) -> None:
        self._end(exit_code)

    async def execute(self, command: list[str], *, stdin: bool) -> Process:
        if self._over.done():
            raise CannotStart("container is not running")
        return LawProcess(self._runtime.answer, self._pod, command, stdin=stdin)

    def _end_later(self, seconds: float, code: int) -> None:
        asyncio.get_running_loop().call_later(seconds, self._end, code)

    def _end(self, code: int) -> None:
        if not self._over.done():
            self._over.set_result(code)


class _Input:
    """Stands in for the pipe to a process."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ended = asyncio.Event()

    def write(self, data: bytes) -> None:
        self.data += data

    async def drain(self) -> None:
        pass

    def close(self) -> None:
        self.ended.set()


class LawProcess:
    """A command whose output is known when its input has ended."""

    def __init__(self, answer: ExecLaw, pod: str, command: list[str], *, stdin: bool) -> None:
        self._answer, self._pod, self._command = answer, pod, command
        self._input = _Input()
        self.stdin = self._input if stdin else None
        if not stdin:
            self._input.ended.set()
        self.stdout, self.stderr = asyncio.StreamReader(), asyncio.StreamReader()
        self._result = asyncio.ensure_future(self._run())

    async def _run(self) -> int:
        await self._input.ended.wait()
        answer = self._answer(self._pod, self._command, bytes(self._input.data))
        for reader, data in ((self.stdout, answer.stdout), (self.stderr, answer.stderr)):
            if data:
                reader.feed_data(data)
            reader.feed_eof()
        return answer.exit_code

    async def wait(self) -> int:
        return await self._result
