"""A sandbox that stays silent while a command runs is given up; one that answers is waited for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentrl.clock import monotonic
from agentrl.errors import SandboxError
from agentrl.rollout.config import AgentConfig
from agentrl.rollout.watched import PROBE_EVERY_S, WatchedSandbox
from agentrl.sandbox.death import Death
from agentrl.sandbox.provider import ExecResult
from agentrl.simulation.instant import InstantSandbox
from agentrl.simulation.loop import simulate


class Slow(InstantSandbox):
    """Commands take as long as they are told to; probes are answered as a list says, the last one for ever."""

    def __init__(self, answers: list[bool]) -> None:
        super().__init__("slow", output=b"", reward=b"1")
        self._answers = answers
        self.ended = False

    async def exec(self, command: str | list[str], **options: Any) -> ExecResult:
        try:
            await asyncio.sleep(float(str(command)))
            return await super().exec(command, **options)
        finally:
            self.ended = True

    async def probe(self) -> bool:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def run(sandbox: Slow, seconds: float) -> tuple[WatchedSandbox, float]:
    async def main() -> tuple[WatchedSandbox, float]:
        watched = WatchedSandbox(sandbox, AgentConfig(), user=None)
        await watched.exec(str(seconds), timeout_s=1e6)
        return watched, monotonic()

    return simulate(main(), seed=0)


def test_a_command_that_ends_soon_is_not_probed() -> None:
    watched, _ = run(Slow([False]), PROBE_EVERY_S - 1)
    assert (watched.probes.num_asked, watched.running, watched.commands.num_run) == (0, None, 1)


def test_a_long_command_is_waited_for_while_probes_are_answered_now_and_then() -> None:
    watched, ended = run(Slow([False, True, False, True]), 10 * PROBE_EVERY_S)
    assert ended == pytest.approx(10 * PROBE_EVERY_S)
    assert watched.probes.num_unanswered == 2 and watched.probes.num_asked >= 9


def test_two_silent_probes_in_a_row_end_it() -> None:
    sandbox = Slow([True, False, False])

    async def main() -> None:
        watched = WatchedSandbox(sandbox, AgentConfig(), user=None)
        with pytest.raises(SandboxError, match="unanswered") as caught:
            await watched.exec("1e5", timeout_s=1e6)
        assert (caught.value.death, watched.running) == (Death.SILENT, "1e5")
        assert monotonic() == pytest.approx(3 * PROBE_EVERY_S)
        await asyncio.sleep(0)
        assert sandbox.ended

    simulate(main(), seed=0)
