"""The embedded engine as a process: what it does beyond the contract, and how it ends."""

from __future__ import annotations

import asyncio
import json
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agentrl.errors import EngineError
from agentrl.inference.client import SGLangClient
from agentrl.inference.engine import FinishReason, PauseMode, SamplingParams
from tests.fixtures.engine import EngineProcess, running_engine, save_random_model, tiny_llama_config

PROMPT = list(range(20, 60))
CONTEXT = ("--context-length", "2048")
CAPACITY = 4
"""Requests that the engine of these tests holds, running or queued."""
LONG = 1500
"""Tokens of a request that is to be caught while it runs."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("model"), tiny_llama_config(max_position_embeddings=2048))


@pytest.fixture(scope="module")
def engine(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    options = ["--max-running-requests", "2", "--max-queued-requests", "2"]
    with running_engine(model, tmp_path_factory.mktemp("engine"), *CONTEXT, *options) as engine:
        yield engine


@pytest.fixture
async def client(engine: EngineProcess) -> AsyncIterator[SGLangClient]:
    client = SGLangClient("engine-0", engine.url, request_timeout_s=60.0)
    yield client
    await client.resume()
    await client.abort(None)
    await client.close()


@pytest.fixture
async def http(engine: EngineProcess) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(engine.url) as session:
        yield session


async def settled(client: SGLangClient, *, running: int, queued: int) -> None:
    """Wait until the engine's load is this."""
    async with asyncio.timeout(30):
        while True:
            load = await client.load()
            if (load.num_running, load.num_queued) == (running, queued):
                return


async def generate(http: aiohttp.ClientSession, **body: Any) -> tuple[int, Any]:
    async with http.post("/generate", json={"input_ids": PROMPT} | body) as reply:
        return reply.status, await reply.json()


async def test_seeded_requests_are_the_same_alone_and_crowded(client: SGLangClient) -> None:
    params = [SamplingParams(max_new_tokens=30, seed=seed) for seed in range(CAPACITY)]
    alone = [await client.generate(f"a-{seed:04}", PROMPT, params[seed]) for seed in range(CAPACITY)]
    await client.flush_cache()
    requests = [client.generate(f"b-{seed:04}", PROMPT, params[seed]) for seed in range(CAPACITY)]
    crowded = await asyncio.gather(*requests)
    assert [generation.ids for generation in alone] == [generation.ids for generation in crowded]
    assert len({tuple(generation.ids) for generation in alone}) == CAPACITY
    for first, second in zip(alone, crowded, strict=True):
        assert first.logprobs == pytest.approx(second.logprobs, abs=1e-4)


async def test_a_batch_is_answered_in_order(http: aiohttp.ClientSession) -> None:
    prompts = [[1], [2, 2], [3, 3, 3]]
    status, answers = await generate(http, input_ids=prompts, rid="b", sampling_params={"max_new_tokens": 3})
    assert status == 200
    assert [answer["meta_info"]["id"] for answer in answers] == ["b_0", "b_1", "b_2"]
    assert [answer["meta_info"]["prompt_tokens"] for answer in answers] == [1, 2, 3]
    assert "output_token_logprobs" not in answers[0]["meta_info"]


async def test_nothing_asked_is_answered_at_once(http: aiohttp.ClientSession) -> None:
    status, answer = await generate(http, sampling_params={"max_new_tokens": 0}, return_logprob=True)
    assert (status, answer["output_ids"], answer["meta_info"]["output_token_logprobs"]) == (200, [], [])


async def test_more_than_the_queue_holds_is_refused_with_503(client: SGLangClient, http: aiohttp.ClientSession) -> None:
    await client.pause()
    params = SamplingParams(max_new_tokens=2)
    held = [asyncio.create_task(client.generate(f"c-{key:04}", PROMPT, params)) for key in range(CAPACITY)]
    await settled(client, running=0, queued=CAPACITY)
    with pytest.raises(EngineError, match="503"):
        await client.generate("c-9999", PROMPT, params)
    await client.resume()
    assert [generation.finish for generation in await asyncio.gather(*held)] == [FinishReason.LENGTH] * CAPACITY


async def test_a_rid_may_be_used_again_while_its_request_is_on_its_way_out(client: SGLangClient) -> None:
    await client.pause()
    params = SamplingParams(max_new_tokens=2)
    held = [asyncio.create_task(client.generate("d-0000", PROMPT, params)) for _ in range(2)]
    await settled(client, running=0, queued=2)
    await client.resume()
    assert [generation.finish for generation in await asyncio.gather(*held)] == [FinishReason.LENGTH] * 2


async def test_a_request_that_waits_can_be_aborted(client: SGLangClient) -> None:
    await client.pause()
    held = asyncio.create_task(client.generate("e-0000", PROMPT, SamplingParams(max_new_tokens=2)))
    await settled(client, running=0, queued=1)
    await client.abort("e-0000")
    generation = await held
    assert (generation.finish, generation.ids) == (FinishReason.ABORT, [])


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_away_aborts_its_request(
    stream: bool, client: SGLangClient, http: aiohttp.ClientSession
) -> None:
    request = asyncio.create_task(generate(http, stream=stream, sampling_params={"max_new_tokens": LONG}))
    await settled(client, running=1, queued=0)
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    await settled(client, running=0, queued=0)


@pytest.mark.parametrize(("mode", "flush"), [("retract", True), ("in_place", False)])
async def test_requests_live_through_an_update_and_tell_which_weights_sampled_what(
    mode: str, flush: bool, model: Path, client: SGLangClient, http: aiohttp.ClientSession
) -> None:
    version = await client.version()
    request = asyncio.create_task(generate(http, sampling_params={"max_new_tokens": LONG}))
    await settled(client, running=1, queued=0)
    async with http.post("/pause_generation", json={"mode": mode}) as reply:
        assert reply.status == 200
    update = {"model_path": str(model), "weight_version": str(version + 1), "flush_cache": flush}
    async with http.post("/update_weights_from_disk", json=update) as reply:
        assert (await reply.json())["num_paused_requests"] == 1
    await client.resume()
    status, answer = await request
    assert status == 200
    spans = answer["meta_info"]["weight_versions"]
    assert spans[-1]["version"] == str(version + 1)
    assert [spans[0]["start"], spans[-1]["end"]] == [0, LONG]
    assert answer["meta_info"]["num_retractions"] == (1 if mode == "retract" else 0)


async def test_an_update_without_a_pause_lets_running_requests_finish_first(
    model: Path, client: SGLangClient, http: aiohttp.ClientSession
) -> None:
    version = await client.version()
    request = asyncio.create_task(generate(http, sampling_params={"max_new_tokens": LONG}))
    await settled(client, running=1, queued=0)
    update = asyncio.create_task(client.update_weights(str(model), version + 1))
    later = asyncio.create_task(client.generate("g-0001", PROMPT, SamplingParams(max_new_tokens=2)))
    _, answer = await request
    await update
    assert {span["version"] for span in answer["meta_info"]["weight_versions"]} == {str(version)}
    assert set((await later).versions) <= {version, version + 1}
    assert await client.version() == version + 1


async def test_an_update_may_abort_what_runs(model: Path, client: SGLangClient, http: aiohttp.ClientSession) -> None:
    request = asyncio.create_task(generate(http, sampling_params={"max_new_tokens": LONG}))
    await settled(client, running=1, queued=0)
    update = {"model_path": str(model), "abort_all_requests": True}
    async with http.post("/update_weights_from_disk", json=update) as reply:
        assert reply.status == 200
    assert (await request)[1]["meta_info"]["finish_reason"]["type"] == "abort"


async def test_requests_wait_while_memory_is_released(client: SGLangClient, http: aiohttp.ClientSession) -> None:
    await client.release_memory()
    held = asyncio.create_task(client.generate("h-0000", PROMPT, SamplingParams(max_new_tokens=2)))
    await settled(client, running=0, queued=1)
    async with http.get("/health_generate") as reply:
        assert reply.status == 503
    assert await client.healthy(), "released is not dead"
    await client.resume_memory()
    assert (await held).finish is FinishReason.LENGTH


async def test_an_engine_whose_weights_were_removed_while_released_serves_the_next_ones(
    model: Path, tmp_path: Path
) -> None:
    old, new, newest = (Path(shutil.copytree(model, tmp_path / name)) for name in ("v000001", "v000002", "v000003"))
    with running_engine(old, tmp_path, *CONTEXT) as engine:
        client = SGLangClient("engine-0", engine.url, request_timeout_s=60.0)
        for version, folder in ((2, new), (3, newest)):
            await client.pause()
            await client.release_memory()
            shutil.rmtree(old)
            old = folder
            await client.resume_memory()
            await client.resume()
            held = asyncio.create_task(client.generate(f"h-000{version}", PROMPT, SamplingParams(max_new_tokens=2)))
            await settled(client, running=0, queued=1)
            async with aiohttp.ClientSession(engine.url) as http, http.get("/health_generate") as reply:
                assert reply.status == 503
            await client.pause(PauseMode.RETRACT)
            await client.update_weights(str(folder), version)
            await client.resume()
            assert set((await held).versions) == {version}
        await client.close()


def resident_bytes(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize()


async def test_released_memory_goes_back_to_the_system(tmp_path: Path) -> None:
    large = tiny_llama_config(hidden_size=512, intermediate_size=2048, vocab_size=4000)
    folder = save_random_model(tmp_path, large)
    weights_bytes = (folder / "model.safetensors").stat().st_size
    with running_engine(folder, tmp_path) as engine:
        client = SGLangClient("engine-0", engine.url, request_timeout_s=60.0)
        for version in (1, 2, 3):
            await client.update_weights(str(folder), version)
        before = await client.generate("m-0000", PROMPT, SamplingParams(max_new_tokens=4, seed=1))
        full = resident_bytes(engine.process.pid)
        await client.release_memory()
        assert full - resident_bytes(engine.process.pid) > 0.9 * weights_bytes
        await client.resume_memory()
        after = await client.generate("m-0001", PROMPT, SamplingParams(max_new_tokens=4, seed=1))
        assert (after.ids, set(after.versions)) == (before.ids, {3})
        await client.close()


async def test_memory_is_not_released_and_the_cache_not_flushed_under_running_requests(
    client: SGLangClient, http: aiohttp.ClientSession
) -> None:
    request = asyncio.create_task(generate(http, sampling_params={"max_new_tokens": LONG}))
    await settled(client, running=1, queued=0)
    async with http.post("/pause_generation", json={"mode": "in_place"}) as reply:
        assert reply.status == 200
    for path in ("/flush_cache", "/release_memory_occupation"):
        async with http.post(path, json={}) as reply:
            assert (path, reply.status) == (path, 400)
    await client.resume()
    await request


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/abort_request", b"{}"),
        ("/abort_request", b'{"rid": 3}'),
        ("/pause_generation", b'{"mode": "sleep"}'),
        ("/update_weights_from_disk", b"{}"),
        ("/update_weights_from_disk", b'{"model_path": 7}'),
        ("/release_memory_occupation", b'{"tags": ["everything"]}'),
        ("/resume_memory_occupation", b'{"tags": "weights"}'),
        ("/generate", b'{"input_ids": [1], "sampling_params": {"temprature": 1}}'),
        ("/generate", b'{"input_ids": [1], "sampling_params": {"temperature": NaN}}'),
    ],
)
async def test_bad_bodies_get_400_with_a_reason(path: str, body: bytes, http: aiohttp.ClientSession) -> None:
    async with http.post(path, data=body) as reply:
        assert reply.status == 400
        assert await reply.text()


async def test_wrong_paths_and_methods_are_no_server_errors(http: aiohttp.ClientSession) -> None:
    async with http.get("/nothing") as reply:
        assert reply.status == 404
    async with http.get("/generate") as reply:
        assert reply.status == 405
    async with http.post("/generate", data=b"x" * (65 << 20)) as reply:
        assert reply.status == 413


async def test_metrics_count_what_happened(client: SGLangClient, http: aiohttp.ClientSession) -> None:
    async def scrape() -> dict[str, float]:
        async with http.get("/metrics") as reply:
            lines = (await reply.text()).splitlines()
        return {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}

    before = await scrape()
    await client.flush_cache()
    await client.generate("j-0000", PROMPT, SamplingParams(max_new_tokens=5))
    await client.generate("j-0001", PROMPT, SamplingParams(max_new_tokens=5))
    after = await scrape()
    grown = {name: value - before[name] for name, value in after.items()}
    assert grown["sglang:generation_tokens_total"] == 10
    assert grown["sglang:cached_tokens_total"] == 39
    assert grown["sglang:prompt_tokens_total"] == 41
    assert grown["sglang:e2e_request_latency_seconds_count"] == 2
    assert grown["sglang:time_to_first_token_seconds_count"] == 2


async def test_anything_at_once_leaves_the_engine_as_it_was(model: Path, tmp_path: Path) -> None:
    """Requests, aborts, clients that leave, pauses, updates, flushes and releases in a seeded disorder."""
    options = ["--max-running-requests", "6", "--max-total-tokens", "900", "--chunked-prefill-size", "32"]
    with running_engine(model, tmp_path, *options, "--context-length", "256") as engine:
        client = SGLangClient("engine-0", engine.url, request_timeout_s=60.0)
        probe = SamplingParams(max_new_tokens=30, seed=7)
        before = await client.generate("probe-0", PROMPT, probe)
        rng = random.Random(3)
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            for key in range(150):
                group.create_task(impatient_request(client, f"r-{key:04}", rng))
                if key % 10 == 9:
                    await disturb(client, model, key, rng)
        await settled(client, running=0, queued=0)
        assert (await client.load()).kv_tokens_used == 0
        after = await client.generate("probe-1", PROMPT, probe)
        assert (after.ids, set(after.versions)) == (before.ids, {await client.version()})
        await client.close()


async def impatient_request(client: SGLangClient, rid: str, rng: random.Random) -> None:
    """A random request; some clients go away before the answer."""
    prompt = [rng.randrange(97) for _ in range(rng.randrange(1, 100))]
    params = SamplingParams(max_new_tokens=rng.randrange(1, 120), temperature=rng.choice([0.0, 1.0]))
    patience_s = 0.05 if rng.random() < 0.2 else None
    try:
        async with asyncio.timeout(patience_s):
            generation = await client.generate(rid, prompt, params)
    except TimeoutError:
        return
    assert generation.finish is not FinishReason.STOP
    assert len(generation.ids) == params.max_new_tokens or generation.finish is FinishReason.ABORT


async def disturb(client: SGLangClient, model: Path, key: int, rng: random.Random) -> None:
    match rng.randrange(4):
        case 0:
            await client.abort(f"r-{key - rng.randrange(10):04}")
        case 1:
            await client.pause()
            await client.update_weights(str(model), key)
            await client.resume()
        case 2:
            await client.update_weights(str(model), key)
        case 3:
            await client.pause()
            await client.release_memory()
            await client.resume_memory()
            await client.resume()


async def test_kill_9_in_mid_request_is_an_engine_error(model: Path, tmp_path: Path) -> None:
    with running_engine(model, tmp_path, *CONTEXT) as engine:
        client = SGLangClient("engine-0", engine.url, request_timeout_s=60.0)
        request = asyncio.create_task(client.generate("k-0000", PROMPT, SamplingParams(max_new_tokens=LONG)))
        await settled(client, running=1, queued=0)
        engine.process.send_signal(signal.SIGKILL)
        with pytest.raises(EngineError):
            await request
        assert not await client.healthy()
        await client.close()


async def test_sigterm_ends_it_cleanly_while_it_works(model: Path, tmp_path: Path) -> None:
    with running_engine(model, tmp_path, *CONTEXT) as engine:
        client = SGLangClient("engine-0", engine.url, request_timeout_s=60.0)
        request = asyncio.create_task(client.generate("l-0000", PROMPT, SamplingParams(max_new_tokens=LONG)))
        await settled(client, running=1, queued=0)
        engine.process.terminate()
        assert await asyncio.to_thread(engine.process.wait, 20) == 0
        with pytest.raises(EngineError):
            await request
        await client.close()


def start_and_fail(*options: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "agentrl.inference.embedded", *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return result.returncode, result.stderr.strip()


def test_a_model_that_is_not_there_is_told_in_one_line(tmp_path: Path) -> None:
    code, text = start_and_fail("--model-path", str(tmp_path / "nowhere"))
    assert (code, text) == (2, f"no such folder: {tmp_path / 'nowhere'}")


def test_a_port_in_use_is_told_in_one_line(model: Path, engine: EngineProcess) -> None:
    port = engine.url.rsplit(":", 1)[1]
    code, text = start_and_fail("--model-path", str(model), "--port", port)
    assert code == 2
    assert f"cannot listen on 127.0.0.1:{port}" in text
    assert "\n" not in text


def test_the_ready_file_names_url_and_process(model: Path, tmp_path: Path) -> None:
    with running_engine(model, tmp_path) as engine:
        content = json.loads((tmp_path / "engine.ready").read_text())
        assert content == {"url": engine.url, "pid": engine.process.pid}
