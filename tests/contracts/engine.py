"""What agentrl relies on in any `Engine`, simulated or served: checks that need no particular model.

Each takes an idle engine whose requests of `LONG` tokens run for a while, and leaves it idle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from agentrl.errors import EngineRequestError
from agentrl.inference.engine import Engine, FinishReason, Generation, PauseMode, SamplingParams

PROMPT = list(range(20, 60))
LONG = 1500
"""Tokens of a request that is to be caught while it runs; with the prompt they fit a context of 2,048."""
SHORT = SamplingParams(max_new_tokens=8)

EngineCheck = Callable[[Engine], Awaitable[None]]
PublicationCheck = Callable[[Engine, str], Awaitable[None]]
"""With a folder of weights that the engine can load."""
_SPANNING = 400
"""Tokens of a request in the middle of which weights change."""


def start(engine: Engine, rid: str, max_new_tokens: int = LONG) -> asyncio.Task[Generation]:
    return asyncio.create_task(engine.generate(rid, PROMPT, SamplingParams(max_new_tokens=max_new_tokens)))


async def until_running(engine: Engine, count: int) -> None:
    while (await engine.load()).num_running < count:  # noqa: ASYNC110 (what is waited for happens in the engine)
        await asyncio.sleep(0.002)


async def a_generation_has_a_logprob_and_a_version_for_its_ids(engine: Engine) -> None:
    generation = await engine.generate("ca-0000", PROMPT, SHORT)
    assert len(generation.ids) == len(generation.logprobs) == 8
    assert generation.finish is FinishReason.LENGTH
    assert set(generation.versions) == {await engine.version()}
    assert all(logprob <= 0 for logprob in generation.logprobs)


async def the_next_turn_finds_its_prefix_cached_until_the_cache_is_flushed(engine: Engine) -> None:
    await engine.flush_cache()
    first = await engine.generate("cb-0000", PROMPT, SHORT)
    assert first.cached_tokens == 0
    second = await engine.generate("cb-0001", [*PROMPT, *first.ids, 3, 4, 5], SHORT)
    assert len(PROMPT) <= second.cached_tokens <= len(PROMPT) + len(first.ids)
    await engine.flush_cache()
    third = await engine.generate("cb-0002", PROMPT, SHORT)
    assert third.cached_tokens == 0


async def an_abort_returns_what_was_sampled_and_hits_nothing_else(engine: Engine) -> None:
    victim, other = start(engine, "cc-0001"), start(engine, "cc-0002", 40)
    await until_running(engine, 2)
    await engine.abort("cc-0001")
    await engine.abort("cc-9999")
    partial, whole = await victim, await other
    assert partial.finish is FinishReason.ABORT
    assert len(partial.ids) == len(partial.logprobs) < LONG
    assert (whole.finish, len(whole.ids)) == (FinishReason.LENGTH, 40)


async def what_was_sampled_before_an_abort_can_be_gone_on_from(engine: Engine) -> None:
    running = start(engine, "cd-0001")
    await until_running(engine, 1)
    await engine.abort(None)
    partial = await running
    going_on = await engine.generate("cd-0002", [*PROMPT, *partial.ids], SHORT)
    assert len(going_on.ids) == 8
    assert going_on.cached_tokens <= len(PROMPT) + len(partial.ids)


async def a_pause_aborts_what_runs_and_holds_what_comes_until_resume(engine: Engine) -> None:
    running = start(engine, "ce-0001")
    await until_running(engine, 1)
    await engine.pause()
    assert (await running).finish is FinishReason.ABORT
    held = start(engine, "ce-0002", 4)
    for _ in range(3):
        await engine.version()
    assert not held.done()
    await engine.resume()
    assert len((await held).ids) == 4


async def memory_is_given_up_and_taken_back(engine: Engine) -> None:
    await engine.generate("cf-0000", PROMPT, SHORT)
    await engine.pause()
    await engine.release_memory()
    await engine.resume_memory()
    await engine.resume()
    after = await engine.generate("cf-0001", PROMPT, SHORT)
    assert (len(after.ids), after.cached_tokens) == (8, 0)


async def requests_that_are_wrong_are_refused_and_the_engine_lives(engine: Engine) -> None:
    with pytest.raises(EngineRequestError):
        await engine.generate("cg-0000", [], SHORT)
    with pytest.raises(EngineRequestError):
        await engine.generate("cg-0001", PROMPT * 100_000, SHORT)
    with pytest.raises(EngineRequestError):
        await engine.generate("cg-0002", PROMPT, SamplingParams(max_new_tokens=100_000_000))
    assert len((await engine.generate("cg-0003", PROMPT, SHORT)).ids) == 8


async def many_requests_at_once_are_all_answered(engine: Engine) -> None:
    prompts = [[20 + key, *range(30, 40 + key)] for key in range(24)]
    requests = [engine.generate(f"ch-{key:04}", prompt, SHORT) for key, prompt in enumerate(prompts)]
    assert [len(generation.ids) for generation in await asyncio.gather(*requests)] == [8] * 24


async def a_caller_that_leaves_frees_its_place(engine: Engine) -> None:
    running = start(engine, "ci-0000")
    await until_running(engine, 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    while (await engine.load()).num_running:  # noqa: ASYNC110 (what is waited for happens in the engine)
        await asyncio.sleep(0.002)


async def an_idle_engine_says_so(engine: Engine) -> None:
    load = await engine.load()
    assert (load.num_running, load.num_queued) == (0, 0)
    assert 0 <= load.kv_tokens_used < load.kv_tokens_capacity
    assert await engine.healthy()


async def what_is_paused_in_place_goes_on_and_carries_both_versions(engine: Engine, weights: str) -> None:
    version = await engine.version()
    spanning = await _across_an_update(engine, "cj-0000", weights, PauseMode.IN_PLACE, flush_cache=False)
    _carries_both_versions(spanning, version)
    assert await engine.version() == version + 1


async def what_is_retracted_goes_on_and_carries_both_versions(engine: Engine, weights: str) -> None:
    version = await engine.version()
    spanning = await _across_an_update(engine, "ck-0000", weights, PauseMode.RETRACT, flush_cache=True)
    _carries_both_versions(spanning, version)


async def kv_of_an_old_version_is_not_for_new_requests(engine: Engine, weights: str) -> None:
    await engine.flush_cache()
    await engine.version()
    before = await engine.generate("cl-0000", PROMPT, SHORT)
    spanning = await _across_an_update(engine, "cl-0001", weights, PauseMode.IN_PLACE, flush_cache=False)
    for key, known in enumerate((before, spanning)):
        fresh = await engine.generate(f"cl-001{key}", [*PROMPT, *known.ids[: 4 * (key + 1)]], SHORT)
        # The second one may find what the first one computed, which is of the new version.
        assert fresh.cached_tokens <= key * (len(PROMPT) + 8)
        assert set(fresh.versions) == {await engine.version()}


async def _across_an_update(
    engine: Engine, rid: str, weights: str, mode: PauseMode, *, flush_cache: bool
) -> Generation:
    """A request that has sampled something when weights change, and the rest afterwards."""
    version = await engine.version()
    await engine.flush_cache()
    running = start(engine, rid, _SPANNING)
    while (await engine.load()).kv_tokens_used < len(PROMPT) + 4:  # noqa: ASYNC110 (it happens in the engine)
        await asyncio.sleep(0.002)
    await engine.pause(mode)
    await engine.update_weights(weights, version + 1, flush_cache=flush_cache)
    await engine.resume()
    return await running


def _carries_both_versions(spanning: Generation, version: int) -> None:
    assert (spanning.finish, len(spanning.ids), len(spanning.logprobs)) == (FinishReason.LENGTH, _SPANNING, _SPANNING)
    assert spanning.versions == sorted(spanning.versions)
    assert set(spanning.versions) == {version, version + 1}


async def it_says_how_it_is_built(engine: Engine) -> None:
    build = await engine.build()
    assert build["version"]
    assert build == await engine.build()


PUBLICATION_CHECKS: list[PublicationCheck] = [
    what_is_paused_in_place_goes_on_and_carries_both_versions,
    what_is_retracted_goes_on_and_carries_both_versions,
    kv_of_an_old_version_is_not_for_new_requests,
]

ENGINE_CHECKS: list[EngineCheck] = [
    a_generation_has_a_logprob_and_a_version_for_its_ids,
    the_next_turn_finds_its_prefix_cached_until_the_cache_is_flushed,
    an_abort_returns_what_was_sampled_and_hits_nothing_else,
    what_was_sampled_before_an_abort_can_be_gone_on_from,
    a_pause_aborts_what_runs_and_holds_what_comes_until_resume,
    memory_is_given_up_and_taken_back,
    requests_that_are_wrong_are_refused_and_the_engine_lives,
    many_requests_at_once_are_all_answered,
    a_caller_that_leaves_frees_its_place,
    an_idle_engine_says_so,
    it_says_how_it_is_built,
]
