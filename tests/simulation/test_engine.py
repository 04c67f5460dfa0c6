"""The simulated engine keeps its laws: speed, order, KV capacity, and it dies when it is told to."""

from __future__ import annotations

import asyncio
import math
from random import Random

import pytest

from agentrl.clock import monotonic
from agentrl.errors import EngineError
from agentrl.inference.engine import FinishReason, Generation, SamplingParams
from agentrl.simulation.batching import Batching, Request
from agentrl.simulation.config import EngineLaw, load_hardware, load_workload
from agentrl.simulation.engine import SimulatedEngine
from agentrl.simulation.life import World
from agentrl.simulation.loop import simulate
from agentrl.simulation.tongue import END, START, SimulatedChat, SimulatedModel


def law(*overrides: str) -> EngineLaw:
    return load_hardware("h8", [f"engine.{override}" for override in overrides]).engine


INSTANT_PREFILL = "prefill_tokens_per_s=1e9"
"""Prefill that takes no time, so that only decoding shows."""


def silent(rid: str, ids: list[int]) -> list[int]:
    return [7] * 100_000


def request(number: int, num_prompt: int, num_message: int) -> Request:
    return Request(
        number=number, rid=f"r{number:04d}", ids=[1000 + number] * num_prompt, message=[2000 + number] * num_message
    )


def run_batching(engine_law: EngineLaw, arrivals: list[tuple[float, Request]]) -> tuple[dict[int, float], Batching]:
    """When each request ended, by event times alone; the KV capacity is checked at every event."""
    batching = Batching(engine_law, 0.0)
    ends: dict[int, float] = {}
    waiting = sorted(arrivals, key=lambda arrival: arrival[0])
    while waiting or batching.busy:
        now = min(batching.next_event(), waiting[0][0] if waiting else math.inf)
        assert now < math.inf, "requests are left and nothing happens any more"
        while waiting and waiting[0][0] <= now:
            batching.submit(waiting.pop(0)[1])
        for ended in batching.tick(now):
            ends[ended.number] = now
        assert batching.free_tokens >= -1e-3
        assert batching.num_running <= engine_law.max_running
    return ends, batching


def test_a_request_alone_takes_the_prefill_and_a_step_for_every_token() -> None:
    ends, _ = run_batching(law(), [(0.0, request(0, 9000, 1000))])
    decoding = sum(0.007 + 0.0001 + 3.5e-8 * (9000 + step) for step in range(1000))
    assert ends[0] == pytest.approx(9000 / 18_000 + decoding, rel=1e-3)


def test_decoding_is_slower_in_company_and_while_another_prefills() -> None:
    plain = law("step_per_context_token_s=0")
    alone, _ = run_batching(plain, [(0.0, request(0, 10, 1000))])
    together, _ = run_batching(plain, [(0.0, request(n, 10, 1000)) for n in range(32)])
    assert together[0] / alone[0] == pytest.approx((0.007 + 0.0032) / 0.0071, rel=0.02)
    disturbed, _ = run_batching(plain, [(0.0, request(0, 10, 1000)), (1.0, request(1, 36_000, 1))])
    assert disturbed[0] - alone[0] == pytest.approx(2.0 * 0.4, rel=0.05)


def token_by_token(engine_law: EngineLaw, arrivals: list[tuple[float, Request]]) -> dict[int, float]:
    """The plain model, without KV limits: one step after another, prefills take no time."""
    ends: dict[int, float] = {}
    waiting = sorted(arrivals, key=lambda arrival: arrival[0])
    running: dict[int, list[int]] = {}
    now = 0.0
    while waiting or running:
        if not running:
            now = max(now, waiting[0][0])
        while waiting and waiting[0][0] <= now:
            new = waiting.pop(0)[1]
            running[new.number] = [len(new.ids), len(new.message)]
        contexts = sum(context for context, _ in running.values())
        now += (
            engine_law.step_s
            + engine_law.step_per_running_s * len(running)
            + engine_law.step_per_context_token_s * contexts
        )
        for number, state in list(running.items()):
            state[0] += 1
            state[1] -= 1
            if not state[1]:
                ends[number] = now
                del running[number]
    return ends


@pytest.mark.parametrize("seed", range(5))
def test_events_in_closed_form_agree_with_token_by_token(seed: int) -> None:
    random = Random(seed)
    arrivals = [
        (random.uniform(0, 20), request(number, random.randint(1, 20_000), random.randint(1, 900)))
        for number in range(40)
    ]
    engine_law = law(INSTANT_PREFILL, "kv_tokens=100000000")
    exact = token_by_token(engine_law, arrivals)
    ends, batching = run_batching(engine_law, arrivals)
    assert ends == pytest.approx(exact, abs=0.1)
    assert batching.stats.generated_tokens == sum(len(r.message) for _, r in arrivals)


def test_at_most_so_many_run_and_the_rest_wait_in_order() -> None:
    ends, _ = run_batching(law("max_running=2", INSTANT_PREFILL), [(0.0, request(n, 10, 100)) for n in range(6)])
    assert sorted(ends, key=lambda number: (ends[number], number)) == list(range(6))
    assert ends[5] == pytest.approx(3 * ends[0], rel=0.01)


@pytest.mark.parametrize("seed", range(5))
def test_a_full_cache_retracts_and_loses_nothing(seed: int) -> None:
    random = Random(seed)
    arrivals = [
        (random.uniform(0, 60), request(number, random.randint(1, 2000), random.randint(1, 1500)))
        for number in range(60)
    ]
    ends, batching = run_batching(law("context_tokens=3600", "kv_tokens=8000"), arrivals)
    assert len(ends) == 60
    assert batching.stats.generated_tokens == sum(len(r.message) for _, r in arrivals)
    assert batching.stats.retractions > 0
    assert batching.stats.prefilled_tokens > sum(len(r.ids) for _, r in arrivals)


def test_members_of_a_group_share_their_prompt() -> None:
    first = request(0, 3000, 50)
    other = Request(number=1, rid="r0001", ids=list(first.ids), message=[5] * 50)
    _, batching = run_batching(law(), [(0.0, first), (0.1, other)])
    assert batching.stats.prefilled_tokens == 3000 + 1


def test_new_weights_wait_for_what_runs_and_change_the_version() -> None:
    async def main() -> tuple[Generation, Generation]:
        engine = SimulatedEngine("engine-0", law(), silent)
        running = asyncio.create_task(engine.generate("a-0", [1], SamplingParams(max_new_tokens=100)))
        await asyncio.sleep(0.1)
        await engine.update_weights("/v1", 1)
        return await running, await engine.generate("a-1", [1], SamplingParams(max_new_tokens=1))

    old, new = simulate(main(), seed=0)
    assert (old.versions, new.versions) == ([0] * 100, [1])


def test_an_engine_that_dies_fails_what_runs_and_whatever_comes() -> None:
    async def main() -> None:
        engine = SimulatedEngine("engine-0", law(), silent)
        running = asyncio.create_task(engine.generate("a-0", [1], SamplingParams(max_new_tokens=100)))
        updating = asyncio.create_task(engine.update_weights("/v1", 1))
        await asyncio.sleep(0.1)
        engine.die()
        for task in (running, updating):
            with pytest.raises(EngineError):
                await task
        with pytest.raises(EngineError):
            await engine.generate("a-1", [1], SamplingParams(max_new_tokens=1))
        assert not await engine.healthy()

    simulate(main(), seed=0)


def test_an_engine_that_hangs_answers_nothing_and_can_still_be_killed() -> None:
    async def main() -> None:
        engine = SimulatedEngine("engine-0", law(), silent)
        running = asyncio.create_task(engine.generate("a-0", [1], SamplingParams(max_new_tokens=100)))
        await asyncio.sleep(0.1)
        engine.hang()
        for asked in (engine.version(), engine.pause(), engine.generate("a-1", [1], SamplingParams(max_new_tokens=1))):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asked, timeout=60)
        assert not running.done()
        engine.die()
        with pytest.raises(EngineError):
            await running

    simulate(main(), seed=0)


def test_busy_time_is_that_with_work() -> None:
    async def main() -> tuple[float, float]:
        engine = SimulatedEngine("engine-0", law("request_s=0"), silent)
        await asyncio.sleep(50)
        began = monotonic()
        await engine.generate("a-0", [1] * 10, SamplingParams(max_new_tokens=1000))
        took = monotonic() - began
        await asyncio.sleep(50)
        return engine.stats.busy_s, took

    busy_s, took = simulate(main(), seed=0)
    assert busy_s == pytest.approx(took)


def test_a_message_says_its_turn_and_goes_on_where_it_was_cut() -> None:
    world = World(load_workload("w_tb"), seed=0)
    model, chat = SimulatedModel(world), SimulatedChat()
    turns = world.life(12, 3, 0).turns
    prompt = [5, START]
    whole = model("g000012.m003.a00.t001.s000", prompt)
    assert len(whole) == turns[1].generated_tokens and whole[-1] == END
    assert chat.decode(whole) == "turn 1"
    for cut in (0, 1, 3, 7):
        assert model("g000012.m003.a00.t001.s001", [*prompt, *whole[:cut]]) == whole[cut:]
    last = model(f"g000012.m003.a00.t{len(turns) - 1:03d}.s000", prompt)
    assert chat.decode(last) == "done"


def test_a_turn_longer_than_its_cap_is_cut() -> None:
    async def main() -> Generation:
        engine = SimulatedEngine("engine-0", law(), lambda rid, ids: [7] * 50 + [END])
        params = SamplingParams(max_new_tokens=20, stop_token_ids=(END,))
        return await engine.generate("a-0", [1], params)

    generation = simulate(main(), seed=0)
    assert (generation.finish, len(generation.ids)) == (FinishReason.LENGTH, 20)
