"""Launching pauses when the machine fails, is tried again, and goes on when it has recovered; or the run gives up."""

from __future__ import annotations

import asyncio
import json

import pytest

from agentrl.controller.lifecycle.job import leaves
from agentrl.errors import RunPaused
from agentrl.ledger.ledger import Ledger
from agentrl.ledger.reader import LedgerReader
from agentrl.observe.events import Event, LaunchingChanged
from agentrl.simulation.loop import simulate
from agentrl.simulation.run import Simulation, build
from tests.simulation.small import scenario

SCHEDULE = {"infra_share_limit": 0.5, "max_infra_retries": 1000}


class Launching:
    """An observer of pauses."""

    def __init__(self) -> None:
        self.paused_s: list[float | None] = []

    def emit(self, event: Event) -> None:
        if isinstance(event, LaunchingChanged):
            self.paused_s.append(event.paused_s)


async def break_starts(simulation: Simulation, *, for_s: float) -> None:
    """No sandbox starts in this time."""
    usual = simulation.provider.start_timeout_s
    simulation.provider.start_timeout_s = 0.0
    await asyncio.sleep(for_s)
    simulation.provider.start_timeout_s = usual


def test_a_run_outlasts_a_machine_that_recovers() -> None:
    async def main() -> None:
        ledger, launching = Ledger.take(":memory:"), Launching()
        simulation = build(scenario(schedule=SCHEDULE), ledger, observer=launching)
        async with asyncio.TaskGroup() as group:
            group.create_task(break_starts(simulation, for_s=300))
            group.create_task(simulation.run())
        assert launching.paused_s[0] == 30.0
        assert launching.paused_s[-1] is None
        assert len(launching.paused_s) >= 3, "it was tried again too early at least once"
        assert [step.step for step in LedgerReader.of(ledger).steps()] == [1, 2, 3]
        assert json.loads(LedgerReader.of(ledger).meta("launching") or "")["paused_s"] is None

    simulate(main(), seed=0)


def test_a_run_gives_up_on_a_machine_that_does_not() -> None:
    async def main() -> None:
        simulation = build(scenario(schedule=SCHEDULE | {"infra_pauses": 2}), Ledger.take(":memory:"))
        simulation.provider.start_timeout_s = 0.0
        with pytest.raises(BaseExceptionGroup) as caught:
            await simulation.run()
        (problem,) = leaves(caught.value)
        assert isinstance(problem, RunPaused)
        assert "launching was paused 2 times before" in str(problem)

    simulate(main(), seed=0)


def test_what_the_pool_came_to_is_on_record() -> None:
    async def main() -> None:
        ledger = Ledger.take(":memory:")
        await build(scenario(), ledger).run()
        used = json.loads(LedgerReader.of(ledger).meta("sandboxes") or "")
        assert used["hits"] + used["misses"] >= 48
        assert used["started"] >= 48

    simulate(main(), seed=0)
