"""The engines as one: retries, suspension, publication."""

from __future__ import annotations

import asyncio

import pytest

from agentrl.controller.fleet.fleet import Fleet
from agentrl.controller.fleet.weights import Weights
from agentrl.errors import EngineError
from agentrl.inference.engine import Generation, PauseMode, SamplingParams
from agentrl.rollout.active_time import ActiveTime
from agentrl.simulation.instant import InstantEngine

PARAMS = SamplingParams(max_new_tokens=8, stop_token_ids=(9,))
RID = "g0.m0.a0.t000.s000"


def make_fleet(failed: list[str] | None = None, turn_timeout_s: float = 60.0) -> Fleet:
    seen = failed if failed is not None else []
    return Fleet(
        Weights("/w0", 0), ActiveTime(), turn_timeout_s=turn_timeout_s, control_timeout_s=5.0, on_failure=seen.append
    )


def engine(name: str = "a") -> InstantEngine:
    return InstantEngine(name, [[1, 2, 9]])


async def test_samples_on_an_engine_that_is_up() -> None:
    fleet = make_fleet()
    await fleet.admit(engine())
    generation = await fleet.sample("e", RID, [5], PARAMS)
    assert generation.ids == [1, 2, 9]


async def test_turn_is_retried_on_another_engine_when_its_own_dies() -> None:
    failed: list[str] = []
    fleet = make_fleet(failed)
    first, second = engine("a"), engine("b")
    await fleet.admit(first)
    await fleet.admit(second)
    await fleet.sample("e", RID, [5], PARAMS)
    first.alive = False
    assert (await fleet.sample("e", RID, [5], PARAMS)).ids == [1, 2, 9]
    assert failed == ["a"]
    assert fleet.num_up == 1


async def test_turn_waits_for_an_engine_to_come_back() -> None:
    fleet = make_fleet()
    waiting = asyncio.create_task(fleet.sample("e", RID, [5], PARAMS))
    await asyncio.sleep(0)
    await fleet.admit(engine())
    assert (await waiting).ids == [1, 2, 9]


async def test_turn_without_any_engine_fails_at_its_deadline() -> None:
    fleet = make_fleet(turn_timeout_s=0.01)
    with pytest.raises(EngineError, match="no engine is up"):
        await fleet.sample("e", RID, [5], PARAMS)


async def test_nothing_is_sampled_while_suspended_and_time_stands_still() -> None:
    active = ActiveTime()
    fleet = Fleet(Weights("/w0", 0), active, turn_timeout_s=0.01, control_timeout_s=5.0, on_failure=lambda _: None)
    await fleet.admit(engine())
    await fleet.suspend()
    await fleet.suspend()
    waiting = asyncio.create_task(fleet.sample("e", RID, [5], PARAMS))
    done, _ = await asyncio.wait({waiting}, timeout=0.05)
    assert not done
    assert active.paused
    await fleet.resume()
    assert (await waiting).ids == [1, 2, 9]
    assert not active.paused


async def test_publication_changes_the_version_of_what_is_sampled_next() -> None:
    fleet = make_fleet()
    await fleet.admit(engine("a"))
    await fleet.admit(engine("b"))
    await fleet.suspend()
    assert await fleet.publish(Weights("/w1", 1)) == 2
    await fleet.resume()
    assert (await fleet.sample("e", RID, [5], PARAMS)).versions == [1] * 3


async def test_engine_that_cannot_take_new_weights_leaves_the_fleet() -> None:
    failed: list[str] = []
    fleet = make_fleet(failed)
    good, bad = engine("a"), engine("b")
    await fleet.admit(good)
    await fleet.admit(bad)
    await fleet.suspend()
    bad.alive = False
    assert await fleet.publish(Weights("/w1", 1)) == 1
    await fleet.resume()
    assert failed == ["b"]


async def test_engine_that_lies_about_its_version_leaves_the_fleet() -> None:
    class Liar(InstantEngine):
        async def update_weights(self, path: str, version: int, *, flush_cache: bool = True) -> None:
            return

    failed: list[str] = []
    fleet = make_fleet(failed)
    await fleet.admit(Liar("a", [[9]]))
    await fleet.suspend()
    assert await fleet.publish(Weights("/w1", 1)) == 0
    assert failed == ["a"]


async def test_engine_that_comes_late_gets_the_current_weights_before_it_serves() -> None:
    fleet = make_fleet()
    await fleet.suspend()
    await fleet.publish(Weights("/w7", 7))
    await fleet.resume()
    await fleet.admit(engine())
    assert (await fleet.sample("e", RID, [5], PARAMS)).versions == [7] * 3


async def test_engine_admitted_while_suspended_serves_only_after_the_resumption() -> None:
    fleet = make_fleet()
    await fleet.suspend()
    await fleet.admit(engine())
    waiting = asyncio.create_task(fleet.sample("e", RID, [5], PARAMS))
    await fleet.resume()
    assert (await waiting).ids == [1, 2, 9]


async def test_engine_that_does_not_answer_a_turn_leaves_the_fleet() -> None:
    class Hung(InstantEngine):
        async def generate(self, rid: str, input_ids: list[int], params: SamplingParams) -> Generation:
            await asyncio.Event().wait()
            raise AssertionError

    failed: list[str] = []
    fleet = make_fleet(failed, turn_timeout_s=0.01)
    await fleet.admit(Hung("a", [[9]]))
    with pytest.raises(EngineError, match="no answer from a"):
        await fleet.sample("e", RID, [5], PARAMS)
    assert failed == ["a"]


async def test_engine_that_does_not_obey_an_order_in_time_leaves_the_fleet() -> None:
    class Deaf(InstantEngine):
        async def pause(self, mode: PauseMode = PauseMode.ABORT) -> None:
            await asyncio.Event().wait()

    failed: list[str] = []
    fleet = Fleet(
        Weights("/w0", 0), ActiveTime(), turn_timeout_s=60.0, control_timeout_s=0.01, on_failure=failed.append
    )
    await fleet.admit(Deaf("a", [[9]]))
    await fleet.suspend()
    assert failed == ["a"]
