"""Behind a router: what holds with our own routing holds, although the router says who sampled only afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentrl.controller.config import InFlight
from agentrl.controller.fleet.fleet import Fleet
from agentrl.controller.fleet.places import Pool
from agentrl.controller.fleet.routed import Routed
from agentrl.controller.fleet.state import EngineState
from agentrl.controller.fleet.weights import Weights
from agentrl.inference.config import Router
from agentrl.inference.engine import FinishReason, Generation, PauseMode, SamplingParams
from agentrl.observe.events import Published, StepApplied
from agentrl.rollout.active_time import ActiveTime
from agentrl.simulation.engine import SimulatedEngine
from agentrl.simulation.faults import Fault, Target
from agentrl.simulation.loop import simulate
from agentrl.simulation.router import SimulatedRouter
from tests.simulation.small import hardware, scenario
from tests.simulation.test_publication import struck

LAW = hardware("engine.request_s=0.5", "engine.update_weights_s=3", "engine.step_s=0.1").engine


class Behind:
    """A fleet of engines behind a router."""

    def __init__(self, names: Sequence[str] = ("swing", "a", "b"), *, turn_timeout_s: float = 600.0) -> None:
        self.failed: list[str] = []
        self.quarantined: dict[str, str] = {}
        self.fleet = Fleet(
            Weights("/v0", 0),
            ActiveTime(),
            turn_timeout_s=turn_timeout_s,
            control_timeout_s=60,
            on_failure=self.failed.append,
            on_quarantine=self.quarantined.__setitem__,
            swing=("swing",),
            places=Pool(kv_share=1.0),
            routed=Routed(control_timeout_s=60),
        )
        self.engines = {name: SimulatedEngine(name, LAW, lambda rid, ids: [7] * 300) for name in names}
        self.router = SimulatedRouter(self.engines)

    async def start(self) -> None:
        assert self.fleet.routed is not None
        await self.fleet.routed.use(self.router)
        for engine in self.engines.values():
            await self.fleet.admit(engine)

    async def sample(self, episode: str, *, tokens: int = 100) -> list[Generation]:
        """A whole message, over as many requests as it takes."""
        parts: list[Generation] = []
        while (left := tokens - sum(len(part.ids) for part in parts)) > 0:
            params = SamplingParams(max_new_tokens=left)
            parts.append(await self.fleet.sample(episode, f"{episode}.s{len(parts):03d}", [1] * 40, params))
        return parts


def test_an_episode_stays_where_it_is_and_all_engines_have_some() -> None:
    async def main() -> list[set[str | None]]:
        behind = Behind()
        await behind.start()
        async with asyncio.TaskGroup() as group:
            first = [group.create_task(behind.sample(f"e{number}")) for number in range(6)]
        second = [await behind.sample(f"e{number}") for number in range(6)]
        return [{part.engine for part in [*task.result(), *later]} for task, later in zip(first, second, strict=True)]

    engines = simulate(main(), seed=0)
    assert [len(names) for names in engines] == [1] * 6
    assert set().union(*engines) == {"swing", "a", "b"}


def test_a_lent_engine_is_cut_from_the_router_before_it_is_told_to_stop() -> None:
    async def main() -> None:
        behind = Behind()
        order: list[str] = []

        class Told(SimulatedEngine):
            async def pause(self, mode: PauseMode = PauseMode.ABORT) -> None:
                order.append("pause" if "swing" in behind.router._urls else "pause, cut off")
                await super().pause(mode)

        behind.engines["swing"] = Told("swing", LAW, lambda rid, ids: [7] * 300)
        await behind.start()
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(behind.sample(f"e{number}")) for number in range(6)]
            await asyncio.sleep(3)
            await behind.fleet.lend()
            assert behind.fleet.state("swing") is EngineState.LENT
        assert order == ["pause, cut off"]
        parts = [part for task in running for part in task.result()]
        kept = [part for part in parts if part.finish is FinishReason.ABORT and part.ids]
        assert kept and {part.engine for part in kept} == {"swing"}, "what it had sampled is not lost"
        assert behind.failed == []
        await behind.fleet.take_back()
        await asyncio.gather(*(behind.sample(f"f{number}") for number in range(6)))
        assert behind.fleet.num_up == 3

    simulate(main(), seed=0)


@pytest.mark.parametrize("delay_s", [delay / 10 for delay in range(0, 20)])
def test_whenever_an_engine_is_lent_every_message_becomes_whole(delay_s: float) -> None:
    async def main() -> None:
        behind = Behind()
        await behind.start()

        async def late(number: int) -> list[Generation]:
            await asyncio.sleep(number / 10)
            return await behind.sample(f"e{number:02d}")

        async with asyncio.TaskGroup() as group:
            running = [group.create_task(late(number)) for number in range(20)]
            await asyncio.sleep(delay_s)
            await behind.fleet.lend()
            await asyncio.sleep(5)
            await behind.fleet.take_back()
        assert [sum(len(part.ids) for part in task.result()) for task in running] == [100] * 20
        assert behind.failed == []

    simulate(main(), seed=0)


@pytest.mark.parametrize("kind", ["die", "hang"])
def test_of_the_engines_behind_it_only_the_one_that_failed_leaves(kind: str) -> None:
    async def main() -> None:
        behind = Behind(turn_timeout_s=30.0)
        await behind.start()
        async with asyncio.TaskGroup() as group:
            for number in range(6):
                group.create_task(behind.sample(f"e{number}", tokens=10))
        engine = behind.router._of["e0"]
        getattr(behind.engines[engine], kind)()
        results = await asyncio.gather(
            *(behind.sample(f"e{number}", tokens=10) for number in range(6)), return_exceptions=True
        )
        assert behind.failed == [engine]
        assert sum(isinstance(result, BaseException) for result in results) == (0 if kind == "die" else 2)
        assert len(await behind.sample("e0")) == 1

    simulate(main(), seed=0)


def test_while_there_is_no_router_requests_wait_and_are_sent_again() -> None:
    async def main() -> None:
        behind = Behind()
        await behind.start()
        assert behind.fleet.routed is not None
        await behind.fleet.routed.use(None)
        waiting = asyncio.create_task(behind.sample("e0"))
        await asyncio.sleep(20)
        assert not waiting.done() and behind.failed == []
        await behind.fleet.routed.use(SimulatedRouter(behind.engines))
        assert len(await waiting) == 1

    simulate(main(), seed=0)


def test_an_engine_that_says_an_old_version_is_named_by_its_answer() -> None:
    async def main() -> None:
        behind = Behind()
        await behind.start()
        await behind.fleet.suspend()
        await behind.fleet.publish(Weights("/v1", 1))
        await behind.fleet.resume()
        await behind.engines["a"].pause()
        await behind.engines["a"].update_weights("/v0", 0)
        await behind.engines["a"].resume()
        messages = await asyncio.gather(*(behind.sample(f"e{number}") for number in range(6)))
        assert {version for parts in messages for part in parts for version in part.versions} == {1}
        assert behind.failed == ["a"]
        assert behind.quarantined == {"a": "sampled from version 0, but 1 was proven"}

    simulate(main(), seed=0)


@pytest.mark.parametrize(
    "target", [Target.CONTROLLER, Target.TRAINER, Target.ENGINE, Target.HANG, Target.STALE, Target.SPOILT]
)
@pytest.mark.parametrize("in_flight", [InFlight.abort_resume, InFlight.in_place])
@pytest.mark.parametrize("swing", ["none", "1"])
def test_a_run_keeps_its_promises(target: Target, in_flight: InFlight, swing: str, tmp_path: Path) -> None:
    chosen = scenario(
        steps=3,
        laws=["groups=2", "turns.median=3"],
        machines=["engine.update_weights_s=20", "trainer.step_s=20"],
        schedule={"max_policy_lag": 4, "stall_timeout_s": 20_000.0, "swing": swing},
        publish={"in_flight": in_flight},
        router=Router.sglang,
    )
    seen = struck(chosen, tmp_path, [Fault(at_s=at_s, target=target, index=1) for at_s in (1.0, 150.0, 400.0)])
    if target in (Target.STALE, Target.SPOILT):
        assert all("engine-1 is quarantined" in warning for warning in seen.warnings) and seen.warnings


@pytest.mark.parametrize("target", [Target.CONTROLLER, Target.ENGINE])
def test_a_kill_between_any_two_messages_of_a_publication_keeps_every_promise(target: Target, tmp_path: Path) -> None:
    chosen = scenario(
        steps=2,
        live=3,
        window_groups=2,
        laws=["groups=1", "group_size=2", "turns.median=1", "turns.cap=2"],
        machines=["trainer.step_s=7"],
        schedule={"swing": "none", "max_policy_lag": 2, "stall_timeout_s": 7200.0},
        publish={"in_flight": InFlight.in_place},
        router=Router.sglang,
    )
    rounds = struck(chosen, tmp_path / "whole", []).rounds
    applied, published = rounds[StepApplied][0], rounds[Published][0]
    assert published - applied > 10
    for number in range(applied - 1, published + 2):
        struck(chosen, tmp_path / str(number), [Fault(target=target, at_round=number)])
