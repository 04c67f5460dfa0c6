"""SGLangClient against servers that misbehave: every fault becomes the right error."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from agentrl.errors import EngineError, EngineRequestError
from agentrl.inference.client import SGLangClient
from agentrl.inference.config import MemoryTag
from agentrl.inference.engine import FinishReason, PauseMode, SamplingParams
from agentrl.inference.gauges import GAUGES
from agentrl.inference.labels import NOT_OURS
from agentrl.wire import Meeting, Piece, Transfer

PARAMS = SamplingParams(max_new_tokens=3, temperature=0.5, stop_token_ids=(9,), seed=4)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler, *, timeout_s: float = 20.0) -> AsyncIterator[SGLangClient]:
    """A client of a server that gives every request to `handler`."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    client = SGLangClient("engine-0", f"http://{host}:{port}/", request_timeout_s=timeout_s)
    try:
        yield client
    finally:
        await client.close()
        await runner.cleanup()


def answering(content: Any, status: int = 200) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return web.Response(body=body, status=status)

    return handler


def generated(**changes: Any) -> dict[str, Any]:
    meta = {
        "id": "a",
        "finish_reason": {"type": "length", "length": 2},
        "weight_version": "7",
        "cached_tokens": 5,
        "output_token_logprobs": [[-0.5, 1, None], [-1.5, 2, None]],
    }
    return {"text": "", "output_ids": [1, 2], "meta_info": meta | changes}


async def test_a_request_has_sglangs_shape_and_the_answer_becomes_a_generation() -> None:
    seen: list[Any] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append((request.method, request.path, await request.json()))
        return web.json_response(generated())

    async with serving(handler) as client:
        generation = await client.generate("a", [1, 2, 3], PARAMS)
    body = {
        "rid": "a",
        "input_ids": [1, 2, 3],
        "sampling_params": {"max_new_tokens": 3, "temperature": 0.5, "stop_token_ids": [9], "sampling_seed": 4},
        "return_logprob": True,
    }
    assert seen == [("POST", "/generate", body)]
    assert (generation.ids, generation.logprobs, generation.finish) == ([1, 2], [-0.5, -1.5], FinishReason.LENGTH)
    assert (generation.versions, generation.cached_tokens) == ([7, 7], 5)


async def test_requests_name_the_version_that_the_server_is_known_to_serve() -> None:
    seen: list[Any] = []

    async def handler(request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else {}
        seen.append((request.path, body.get("extra_key")))
        if request.path == "/update_weights_from_disk":
            return web.json_response({"success": body["model_path"] != "/broken"})
        return web.json_response({"weight_version": "7"} if request.path == "/model_info" else generated())

    async with serving(handler) as client:
        await client.version()
        await client.generate("a", [1], PARAMS)
        await client.update_weights("/weights", 8, flush_cache=False)
        await client.generate("b", [1], PARAMS)
        with pytest.raises(EngineError):
            await client.update_weights("/broken", 9)
        await client.generate("c", [1], PARAMS)
    assert [key for path, key in seen if path == "/generate"] == ["7", "8", None]


async def test_a_signed_engine_is_known_by_its_answers_and_anothers_label_is_not_ours() -> None:
    labels = iter(["default", "7", "7@engine-1", "7@engine-0"])
    update: list[Any] = []

    async def handler(request: web.Request) -> web.Response:
        if request.path == "/model_info":
            return web.json_response({"weight_version": next(labels)})
        if request.path == "/generate":
            return web.json_response(generated(weight_version="8@engine-0"))
        update.append(await request.json())
        return web.json_response({"success": True})

    async with serving(handler) as unsigned:
        client = SGLangClient("engine-0", unsigned.url, request_timeout_s=20.0, signed=True)
        assert [await client.version() for _ in range(4)] == [NOT_OURS, NOT_OURS, NOT_OURS, 7]
        await client.update_weights("/weights", 8)
        assert update[0]["weight_version"] == "8@engine-0"
        generation = await client.generate("a", [1], PARAMS)
        assert (generation.engine, generation.versions) == ("engine-0", [8, 8])
        await client.close()


async def test_a_priority_and_the_memory_to_give_up_are_part_of_the_requests() -> None:
    seen: list[Any] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append((request.path, await request.json()))
        return web.json_response(generated())

    async with serving(handler) as client:
        await client.generate("a", [1], replace(PARAMS, priority=2))
        await client.generate("b", [1], PARAMS)
        await client.release_memory()
        tags = [MemoryTag.kv_cache, MemoryTag.cuda_graph]
        some = SGLangClient("engine-0", client.url, request_timeout_s=20.0, tags=tags)
        await some.release_memory()
        await some.resume_memory()
        await some.close()
    assert [body.get("priority") for _, body in seen[:2]] == [2, None]
    told = {"tags": ["kv_cache", "cuda_graph"]}
    assert seen[2:] == [
        ("/release_memory_occupation", {}),
        ("/release_memory_occupation", told),
        ("/resume_memory_occupation", told),
    ]


async def test_an_answer_that_two_engines_signed_is_an_engine_error() -> None:
    spans = [{"version": "7@a", "start": 0, "end": 1}, {"version": "7@b", "start": 1, "end": 2}]
    async with serving(answering(generated(weight_versions=spans))) as client:
        with pytest.raises(EngineError, match="signed by several"):
            await client.generate("a", [1], PARAMS)


@pytest.mark.parametrize("mode", PauseMode)
async def test_a_pause_and_an_update_say_what_becomes_of_requests(mode: PauseMode) -> None:
    seen: list[Any] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(await request.json())
        return web.json_response({"success": True})

    async with serving(handler) as client:
        await client.pause(mode)
        await client.update_weights("/weights", 8, flush_cache=mode is not PauseMode.IN_PLACE)
    update = {"model_path": "/weights", "weight_version": "8", "abort_all_requests": False}
    assert seen == [{"mode": mode.value}, update | {"flush_cache": mode is not PauseMode.IN_PLACE}]


async def test_an_abort_before_the_first_token_is_an_empty_generation() -> None:
    answer = {"output_ids": [], "meta_info": {"finish_reason": {"type": "abort"}, "weight_version": "7"}}
    async with serving(answering(answer)) as client:
        generation = await client.generate("a", [1], PARAMS)
    assert (generation.ids, generation.logprobs, generation.finish) == ([], [], FinishReason.ABORT)


async def test_weights_that_changed_meanwhile_label_each_id_with_its_own_version() -> None:
    spans = [{"version": "7", "start": 0, "end": 1}, {"version": "8", "start": 1, "end": 2}]
    async with serving(answering(generated(weight_versions=spans))) as client:
        assert (await client.generate("a", [1], PARAMS)).versions == [7, 8]


async def test_a_stop_token_in_the_last_place_is_a_stop() -> None:
    answer = generated(output_token_logprobs=[[-0.5, 1, None], [-1.5, 9, None]]) | {"output_ids": [1, 9]}
    async with serving(answering(answer)) as client:
        assert (await client.generate("a", [1], PARAMS)).finish is FinishReason.STOP


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"<html>proxy</html>",
        [],
        {},
        {"output_ids": [1]},
        generated(output_token_logprobs=[[-0.5, 1, None]]),
        generated(output_token_logprobs=[[-0.5, 1, None], [-0.5, 3, None]]),
        generated(output_token_logprobs=[[-0.5, 1, None], [None, 2, None]]),
        generated(output_token_logprobs=[[-0.5, 1, None], ["x", 2, None]]),
        generated(weight_version="default"),
        generated(weight_version=None),
        generated(weight_versions=[{"version": "7", "start": 0, "end": 1}]),
        generated(weight_versions=[{"version": "7", "start": 1, "end": 2}]),
        generated(weight_versions=[{"version": "7", "start": 0, "end": 2}, {"version": "8", "start": 1, "end": 2}]),
        generated(finish_reason={"type": "tired"}),
        generated(finish_reason=None),
    ],
)
async def test_an_answer_that_is_not_the_apis_is_an_engine_error(answer: Any) -> None:
    async with serving(answering(answer)) as client:
        with pytest.raises(EngineError, match="engine-0"):
            await client.generate("a", [1], PARAMS)


async def test_a_refused_request_is_told_from_a_broken_engine() -> None:
    async with serving(answering({"error": {"message": "too long"}}, status=400)) as client:
        with pytest.raises(EngineRequestError, match="too long"):
            await client.generate("a", [1], PARAMS)
        with pytest.raises(EngineError, match="too long"):
            await client.update_weights("/weights", 1)
    for status in (404, 429, 500, 502, 503):
        async with serving(answering(b"oops", status=status)) as client:
            with pytest.raises(EngineError, match=f"{status}: oops"):
                await client.generate("a", [1], PARAMS)


async def test_a_missed_deadline_is_an_engine_error() -> None:
    async def handler(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        return web.Response()

    async with serving(handler, timeout_s=0.05) as client:
        with pytest.raises(EngineError, match=r"within 0\.05 s"):
            await client.generate("a", [1], PARAMS)


async def test_a_lost_connection_is_an_engine_error() -> None:
    async def handler(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with serving(handler) as client:
        with pytest.raises(EngineError, match="/generate"):
            await client.generate("a", [1], PARAMS)


async def test_nobody_at_the_address_is_an_engine_error_and_unhealthy() -> None:
    async with serving(answering({})) as client:
        url = client._url
    client = SGLangClient("gone", url, request_timeout_s=5.0)
    try:
        with pytest.raises(EngineError, match="gone"):
            await client.version()
        assert not await client.healthy()
    finally:
        await client.close()


async def test_weights_that_were_not_loaded_are_an_error_even_at_200() -> None:
    async with serving(answering({"success": False, "message": "live requests"})) as client:
        with pytest.raises(EngineError, match="live requests"):
            await client.update_weights("/weights", 3)


async def test_loads_are_summed_over_ranks() -> None:
    rank = {"num_running_reqs": 1, "num_waiting_reqs": 2, "num_used_tokens": 30, "max_total_num_tokens": 400}
    async with serving(answering({"loads": [rank, rank]})) as client:
        load = await client.load()
    assert (load.num_running, load.num_queued, load.kv_tokens_used, load.kv_tokens_capacity) == (2, 4, 60, 800)


async def test_what_an_engine_says_of_its_work_is_read_from_its_metrics() -> None:
    lines = [f'sglang:{name}{{model_name="m",tp_rank="{rank}"}} {rank + 1}' for name in GAUGES for rank in (0, 1)]
    lines = [line for name in GAUGES for line in (f"# TYPE sglang:{name} gauge", *(x for x in lines if name in x))]
    async with serving(answering("\n".join(lines).encode() + b"\n")) as client:
        assert await client.gauges() == dict.fromkeys(GAUGES, 2.0)
    for broken in ("\n".join(lines[:-3]) + "\n", "sglang:x{ 1\n"):
        async with serving(answering(broken.encode())) as client:
            with pytest.raises(EngineError, match="/metrics"):
                await client.gauges()


async def update_requests(transfer: Transfer) -> list[tuple[str, Any]]:
    """What a server is asked in turn while it takes weights."""
    seen: list[tuple[str, Any]] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append((request.path, await request.json()))
        return web.json_response({"success": True, "message": ""})

    async with serving(handler) as client:
        await client.receive_weights(transfer)
    return seen


def pieces(*handles: bytes) -> list[Piece]:
    return [
        Piece(names=[name], dtypes=["bfloat16"], shapes=[[2, 3]], handles=list(handles))
        for name in ("a.weight", "b.bias")
    ]


async def test_weights_through_a_group_are_one_session_of_sglangs_and_labelled_with_the_last_piece() -> None:
    meeting = Meeting(address="10.0.0.1", port=29500, name="agentrl-1-2-3", size=5, backend="nccl")
    seen = await update_requests(Transfer(version=7, pieces=pieces(), meeting=meeting, num_bytes=24))
    joining = {
        "master_address": "10.0.0.1",
        "master_port": 29500,
        "rank_offset": 1,
        "world_size": 5,
        "group_name": "agentrl-1-2-3",
        "backend": "nccl",
    }
    piece = {"dtypes": ["bfloat16"], "shapes": [[2, 3]], "group_name": "agentrl-1-2-3", "abort_all_requests": False}
    assert seen == [
        ("/update_weight_version", {"new_version": "-1", "abort_all_requests": False}),
        ("/init_weights_update_group", joining),
        ("/begin_weight_update", {}),
        (
            "/update_weights_from_distributed",
            {**piece, "names": ["a.weight"], "flush_cache": False, "weight_version": None},
        ),
        (
            "/update_weights_from_distributed",
            {**piece, "names": ["b.bias"], "flush_cache": True, "weight_version": "7"},
        ),
        ("/end_weight_update", {}),
        ("/destroy_weights_update_group", {"group_name": "agentrl-1-2-3"}),
    ]


async def test_weights_by_handle_bring_a_payload_for_each_rank() -> None:
    seen = await update_requests(Transfer(version=7, pieces=pieces(b"gpu 0", b"gpu 1"), meeting=None, num_bytes=24))
    assert [path for path, _ in seen] == [
        "/update_weight_version",
        "/begin_weight_update",
        "/update_weights_from_tensor",
        "/update_weights_from_tensor",
        "/end_weight_update",
    ]
    payloads = [base64.b64encode(handle).decode() for handle in (b"gpu 0", b"gpu 1")]
    for (_, body), last in zip(seen[2:4], (False, True), strict=True):
        assert body["serialized_named_tensors"] == payloads
        assert (body["flush_cache"], body["weight_version"]) == (last, "7" if last else None)
