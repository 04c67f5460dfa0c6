"""The fleet and the collector when engines come and go in the middle of a suspension or a publication."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentrl.controller.fleet.fleet import Fleet
from agentrl.controller.fleet.weights import Weights
from agentrl.inference.engine import SamplingParams
from agentrl.rollout.active_time import ActiveTime
from agentrl.simulation.engine import SimulatedEngine
from agentrl.simulation.faults import Fault, FaultyRun, Target
from agentrl.simulation.loop import simulate
from tests.simulation.small import hardware, scenario

LAW = hardware("engine.request_s=0.5", "engine.update_weights_s=3").engine
PARAMS = SamplingParams(max_new_tokens=4)


def new_engine(name: str) -> SimulatedEngine:
    return SimulatedEngine(name, LAW, lambda rid, ids: [7] * 100)


def new_fleet() -> Fleet:
    return Fleet(Weights("/v0", 0), ActiveTime(), turn_timeout_s=600, control_timeout_s=60, on_failure=lambda _: None)


@pytest.mark.parametrize("delay_s", [delay / 10 for delay in range(0, 60, 2)])
def test_an_engine_that_comes_during_a_publication_serves_the_new_weights_once_it_may(delay_s: float) -> None:
    async def main() -> None:
        fleet = new_fleet()
        await fleet.admit(new_engine("first"))

        async def admit_late() -> None:
            await asyncio.sleep(delay_s)
            await fleet.admit(new_engine("late"))

        async with asyncio.TaskGroup() as group:
            group.create_task(admit_late())
            await fleet.suspend()
            await fleet.publish(Weights("/v1", 1))
            await fleet.resume()
        async with asyncio.timeout(60):
            generations = [await fleet.sample(f"e{number}", f"e{number}.t000.s000", [1], PARAMS) for number in range(4)]
        assert [set(generation.versions) for generation in generations] == [{1}] * 4

    simulate(main(), seed=0)


def test_collecting_begins_when_an_engine_comes_back_although_nothing_is_live(tmp_path: Path) -> None:
    async def main() -> int:
        chosen = scenario(
            steps=2,
            live=1,
            window_groups=1,
            laws=["groups=1", "group_size=2"],
            machines=["engines=1", "engine.restart_s=4000", "trainer.step_s=5000"],
            schedule={"swing": "all", "stall_timeout_s": 20_000.0},
        )
        run = FaultyRun(chosen, tmp_path / "ledger.sqlite")
        await run.run([Fault(at_s=5000, target=Target.ENGINE)])  # It comes back after the first step is trained.
        return run.disk.version

    assert simulate(main(), seed=0) == 2
