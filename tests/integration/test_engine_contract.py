"""What agentrl relies on in an inference server, whichever it is.

By default the server is the embedded engine on a random model made here. With AGENTRL_TEST_SGLANG (the interpreter of
an environment with SGLang) it is a real SGLang on the CPU: `make test-sglang`. With AGENTRL_TEST_ENGINE_URL (a running
server with SGLang's API, weight version a number) and AGENTRL_TEST_ENGINE_MODEL (the folder that it serves, in float32)
it is that one.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from safetensors.torch import load_file, save_file

from agentrl.errors import EngineError, EngineRequestError
from agentrl.inference.client import SGLangClient
from agentrl.inference.engine import FinishReason, Generation, PauseMode, SamplingParams
from agentrl.inference.gauges import GAUGES
from tests.contracts.engine import PUBLICATION_CHECKS, PublicationCheck
from tests.fixtures.engine import (
    reference_logprobs,
    running_engine,
    running_sglang,
    save_random_model,
    tiny_llama_config,
)

PROMPT = list(range(20, 60))
LONG = 1500
"""Tokens of a request that is to be caught while it runs; with the prompt they fit a context of 2,048."""


@dataclass(frozen=True)
class Server:
    url: str
    model: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    url, model = os.environ.get("AGENTRL_TEST_ENGINE_URL"), os.environ.get("AGENTRL_TEST_ENGINE_MODEL")
    if url is not None:
        assert model is not None, "AGENTRL_TEST_ENGINE_URL needs AGENTRL_TEST_ENGINE_MODEL"
        yield Server(url, Path(model))
        return
    folder = save_random_model(tmp_path_factory.mktemp("model"), tiny_llama_config(max_position_embeddings=2048))
    if python := os.environ.get("AGENTRL_TEST_SGLANG"):
        with running_sglang(python, folder, tmp_path_factory.mktemp("engine"), context_length=2048) as engine:
            yield Server(engine.url, folder)
        return
    options = ["--max-running-requests", "16", "--context-length", "2048"]
    with running_engine(folder, tmp_path_factory.mktemp("engine"), *options) as engine:
        yield Server(engine.url, folder)


@pytest.fixture
async def client(server: Server) -> AsyncIterator[SGLangClient]:
    client = SGLangClient("engine-0", server.url, request_timeout_s=60.0)
    await client.resume()
    await client.abort(None)
    yield client
    await client.close()


class Stream:
    """A raw streaming request that samples `LONG` tokens unless something ends it."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def next(self) -> dict[str, Any] | None:
        """The next event, None at the end."""
        async for line in self._response.content:
            if line.startswith(b"data: "):
                data = line.removeprefix(b"data: ").strip()
                return None if data == b"[DONE]" else json.loads(data)
        return None

    async def last(self) -> dict[str, Any]:
        newest: dict[str, Any] = {}
        while (event := await self.next()) is not None:
            newest = event
        return newest


@asynccontextmanager
async def streaming(server: Server, rid: str, **sampling: Any) -> AsyncIterator[Stream]:
    params = {"max_new_tokens": LONG, "ignore_eos": True} | sampling
    body = {"rid": rid, "input_ids": PROMPT, "sampling_params": params, "stream": True, "return_logprob": True}
    async with aiohttp.ClientSession() as session, session.post(server.url + "/generate", json=body) as response:
        assert response.status == 200, await response.text()
        yield Stream(response)


async def post(server: Server, path: str, data: bytes) -> tuple[int, str]:
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession() as session, session.post(server.url + path, data=data, headers=headers) as reply:
        return reply.status, await reply.text()


def told(folder: Path, prompt: list[int], generation: Generation, temperature: float = 1.0) -> list[float]:
    """What transformers says the log-probs of a generation are."""
    expected = reference_logprobs(folder, [*prompt, *generation.ids], temperature)
    return [expected[len(prompt) - 1 + index, token].item() for index, token in enumerate(generation.ids)]


def perturbed(folder: Path, target: Path) -> Path:
    """A copy of a model with other weights."""
    target.mkdir()
    for file in folder.iterdir():
        if file.suffix != ".safetensors":
            (target / file.name).write_bytes(file.read_bytes())
    generator = torch.Generator().manual_seed(5)
    for file in folder.glob("*.safetensors"):
        tensors = load_file(file)
        noisy = {name: t + 0.05 * torch.randn(t.shape, generator=generator).to(t.dtype) for name, t in tensors.items()}
        save_file(noisy, target / file.name, metadata={"format": "pt"})
    return target


@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_logprobs_are_of_the_distribution_that_was_sampled_from(
    server: Server, client: SGLangClient, temperature: float
) -> None:
    params = SamplingParams(max_new_tokens=24, temperature=temperature)
    generation = await client.generate("a-0000", PROMPT, params)
    assert len(generation.ids) == len(generation.logprobs) <= 24
    assert generation.logprobs == pytest.approx(told(server.model, PROMPT, generation, temperature), abs=1e-3)


async def test_greedy_is_the_models_argmax_with_logprobs_at_temperature_one(
    server: Server, client: SGLangClient
) -> None:
    generation = await client.generate("a-0001", PROMPT, SamplingParams(max_new_tokens=12, temperature=0.0))
    expected = reference_logprobs(server.model, [*PROMPT, *generation.ids])[len(PROMPT) - 1 : -1]
    assert generation.ids == expected.argmax(-1).tolist()
    assert generation.logprobs == pytest.approx(expected.max(-1).values.tolist(), abs=1e-3)


async def test_the_best_logprobs_of_prefixes_are_the_models(server: Server, client: SGLangClient) -> None:
    ids, ends = list(range(3, 90)), [1, 40, 17, 86]
    expected = reference_logprobs(server.model, ids).max(-1).values
    assert await client.best_logprobs(ids, ends) == pytest.approx([expected[end - 1].item() for end in ends], abs=1e-3)


async def test_a_stop_token_ends_the_generation_and_stays_in_it(client: SGLangClient) -> None:
    greedy = await client.generate("a-0002", PROMPT, SamplingParams(max_new_tokens=12, temperature=0.0))
    stop = greedy.ids[3]
    params = SamplingParams(max_new_tokens=12, temperature=0.0, stop_token_ids=(stop,))
    generation = await client.generate("a-0003", PROMPT, params)
    assert generation.ids == greedy.ids[: greedy.ids.index(stop) + 1]
    assert generation.finish is FinishReason.STOP


async def test_many_requests_at_once_each_get_their_own_answer(server: Server, client: SGLangClient) -> None:
    prompts = [[20 + key, *range(30, 40 + key)] for key in range(24)]
    params = SamplingParams(max_new_tokens=10)
    requests = [client.generate(f"b-{key:04}", prompt, params) for key, prompt in enumerate(prompts)]
    for prompt, generation in zip(prompts, await asyncio.gather(*requests), strict=True):
        assert generation.logprobs == pytest.approx(told(server.model, prompt, generation), abs=1e-3)


async def test_the_next_turn_of_an_episode_finds_its_prefix_cached(client: SGLangClient) -> None:
    await client.flush_cache()
    first = await client.generate("c-0000", PROMPT, SamplingParams(max_new_tokens=8))
    assert first.cached_tokens == 0
    second = await client.generate("c-0001", [*PROMPT, *first.ids, 3, 4, 5], SamplingParams(max_new_tokens=8))
    assert second.cached_tokens >= len(PROMPT)
    await client.flush_cache()
    third = await client.generate("c-0002", PROMPT, SamplingParams(max_new_tokens=8))
    assert third.cached_tokens == 0


async def test_an_abort_returns_what_was_sampled_and_hits_nothing_else(server: Server, client: SGLangClient) -> None:
    async with streaming(server, "d-0001") as victim, streaming(server, "d-0002", max_new_tokens=40) as other:
        assert await victim.next() is not None
        await client.abort("d-0001")
        await client.abort("d-9999")
        partial, whole = await victim.last(), await other.last()
    meta = partial["meta_info"]
    assert meta["finish_reason"]["type"] == "abort"
    assert 0 < len(partial["output_ids"]) < LONG
    assert [entry[1] for entry in meta["output_token_logprobs"]] == partial["output_ids"]
    assert (whole["meta_info"]["finish_reason"]["type"], len(whole["output_ids"])) == ("length", 40)


async def test_abort_all_ends_every_request(server: Server, client: SGLangClient) -> None:
    async with streaming(server, "e-0001") as first, streaming(server, "e-0002") as second:
        await first.next()
        await second.next()
        await client.abort(None)
        ends = [await first.last(), await second.last()]
    assert [end["meta_info"]["finish_reason"]["type"] for end in ends] == ["abort", "abort"]


async def test_a_stream_is_cumulative_and_ends_like_an_answer(server: Server) -> None:
    async with streaming(server, "f-0001", max_new_tokens=20) as stream:
        events = []
        while (event := await stream.next()) is not None:
            events.append(event)
    for before, after in pairwise(events):
        assert after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
    meta = events[-1]["meta_info"]
    assert (meta["finish_reason"]["type"], meta["completion_tokens"], meta["prompt_tokens"]) == ("length", 20, 40)
    assert len(meta["output_token_logprobs"]) == 20


async def test_a_pause_aborts_what_runs_and_holds_what_comes_until_resume(server: Server, client: SGLangClient) -> None:
    async with streaming(server, "g-0001") as stream:
        await stream.next()
        await client.pause()
        assert (await stream.last())["meta_info"]["finish_reason"]["type"] == "abort"
    held = asyncio.create_task(client.generate("g-0002", PROMPT, SamplingParams(max_new_tokens=4)))
    for _ in range(3):
        await client.version()
    assert not held.done()
    await client.resume()
    assert (await held).finish in (FinishReason.LENGTH, FinishReason.STOP)


async def test_new_weights_serve_under_their_version_and_nothing_old_is_reused(
    server: Server, client: SGLangClient, tmp_path: Path
) -> None:
    newer = perturbed(server.model, tmp_path / "newer")
    version = await client.version()
    await client.generate("h-0000", PROMPT, SamplingParams(max_new_tokens=8))
    try:
        await client.pause()
        await client.update_weights(str(newer), version + 1)
        await client.resume()
        assert await client.version() == version + 1
        generation = await client.generate("h-0001", PROMPT, SamplingParams(max_new_tokens=16))
        assert (set(generation.versions), generation.cached_tokens) == ({version + 1}, 0)
        assert generation.logprobs == pytest.approx(told(newer, PROMPT, generation), abs=1e-3)
    finally:
        await client.update_weights(str(server.model), version + 2)
    generation = await client.generate("h-0002", PROMPT, SamplingParams(max_new_tokens=16))
    assert set(generation.versions) == {version + 2}
    assert generation.logprobs == pytest.approx(told(server.model, PROMPT, generation), abs=1e-3)


@pytest.mark.parametrize("check", PUBLICATION_CHECKS, ids=lambda check: check.__name__)
async def test_requests_in_flight_when_weights_change(
    check: PublicationCheck, server: Server, client: SGLangClient
) -> None:
    await check(client, str(server.model))


async def test_what_is_retracted_goes_on_as_the_new_weights_would(
    server: Server, client: SGLangClient, tmp_path: Path
) -> None:
    newer = perturbed(server.model, tmp_path / "newer")
    version = await client.version()
    try:
        async with streaming(server, "h-1000", max_new_tokens=300) as stream:
            await stream.next()
            await client.pause(PauseMode.RETRACT)
            await client.update_weights(str(newer), version + 1)
            await client.resume()
            answer = await stream.last()
    finally:
        await client.update_weights(str(server.model), version + 2)
    ids, meta = answer["output_ids"], answer["meta_info"]
    (old, new) = meta["weight_versions"]
    assert (old["version"], old["start"], new["version"], new["end"]) == (str(version), 0, str(version + 1), 300)
    logprobs = [entry[0] for entry in meta["output_token_logprobs"]]
    for folder, span in ((server.model, old), (newer, new)):
        expected = reference_logprobs(folder, [*PROMPT, *ids])
        told_by_it = [expected[len(PROMPT) - 1 + at, ids[at]].item() for at in range(span["start"], span["end"])]
        assert logprobs[span["start"] : span["end"]] == pytest.approx(told_by_it, abs=1e-3)


async def test_weights_that_cannot_be_loaded_change_nothing(
    server: Server, client: SGLangClient, tmp_path: Path
) -> None:
    version = await client.version()
    before = await client.generate("i-0000", PROMPT, SamplingParams(max_new_tokens=8, temperature=0.0))
    with pytest.raises(EngineError):
        await client.update_weights(str(tmp_path / "nowhere"), version + 1)
    after = await client.generate("i-0001", PROMPT, SamplingParams(max_new_tokens=8, temperature=0.0))
    assert (after.ids, set(after.versions), await client.version()) == (before.ids, {version}, version)


async def test_memory_is_given_up_and_taken_back(server: Server, client: SGLangClient) -> None:
    before = await client.generate("j-0000", PROMPT, SamplingParams(max_new_tokens=8, temperature=0.0))
    await client.pause()
    await client.release_memory()
    await client.resume_memory()
    await client.resume()
    after = await client.generate("j-0001", PROMPT, SamplingParams(max_new_tokens=8, temperature=0.0))
    assert after.ids == before.ids


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'{"sampling_params": {}}',
        b'{"input_ids": []}',
        b'{"input_ids": "abc"}',
        b'{"input_ids": [1], "sampling_params": {"temperature": -1}}',
        b'{"input_ids": [1], "sampling_params": {"top_p": 0}}',
        b'{"input_ids": [1], "sampling_params": {"max_new_tokens": 100000000}}',
        json.dumps({"input_ids": [1] * 1_000_000}).encode(),
    ],
)
async def test_bad_requests_get_400_and_the_server_lives(server: Server, client: SGLangClient, body: bytes) -> None:
    status, text = await post(server, "/generate", body)
    assert status == 400, text[:200]
    assert text.strip()
    good = await client.generate("k-0000", PROMPT, SamplingParams(max_new_tokens=2))
    assert len(good.ids) > 0


@pytest.mark.skipif("AGENTRL_TEST_SGLANG" in os.environ, reason="SGLang without a tokenizer dies of such an id")
async def test_an_id_outside_the_vocabulary_gets_400_and_the_server_lives(server: Server, client: SGLangClient) -> None:
    status, text = await post(server, "/generate", b'{"input_ids": [1, 2, 100000000]}')
    assert status == 400, text[:200]
    good = await client.generate("k-0001", PROMPT, SamplingParams(max_new_tokens=2))
    assert len(good.ids) > 0


async def test_the_server_says_that_it_has_every_endpoint(client: SGLangClient) -> None:
    await client.check_api()


async def test_a_refused_request_is_told_to_the_caller(client: SGLangClient) -> None:
    with pytest.raises(EngineRequestError):
        await client.generate("l-0000", [], SamplingParams(max_new_tokens=2))


async def test_load_health_and_metrics_are_told(server: Server, client: SGLangClient) -> None:
    load = await client.load()
    assert (load.num_running, load.num_queued) == (0, 0)
    assert load.kv_tokens_capacity > 0
    assert await client.healthy()
    async with aiohttp.ClientSession() as session:
        async with session.get(server.url + "/health_generate") as reply:
            assert reply.status == 200
        async with session.get(server.url + "/metrics") as reply:
            metrics = await reply.text()
        async with session.get(server.url + "/server_info") as reply:
            assert (await reply.json())["internal_states"]
    assert set(await client.gauges()) == set(GAUGES)
    for name in ("num_running_reqs", "num_queue_reqs", "token_usage", "gen_throughput", "generation_tokens_total"):
        assert f"\nsglang:{name}" in metrics
