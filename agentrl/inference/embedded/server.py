"""The HTTP front: SGLang's native API over the worker. Knows requests and answers; decides nothing about computing."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from agentrl.inference.embedded.answers import generation
from agentrl.inference.embedded.core import EngineCore, Update
from agentrl.inference.embedded.metrics import Metrics
from agentrl.inference.embedded.requests import (
    AbortBody,
    BadRequest,
    GenerateRequest,
    MemoryBody,
    PauseBody,
    Prompt,
    ServedModel,
    UpdateWeightsBody,
    decode,
    parse_generate,
)
from agentrl.inference.embedded.sampling import MAX_SEED
from agentrl.inference.embedded.sequence import End, Sequence, Snapshot
from agentrl.inference.embedded.weight_updates import WeightUpdates
from agentrl.inference.embedded.weights import WeightsError
from agentrl.inference.embedded.worker import Worker

log = logging.getLogger("agentrl.embedded")

_MAX_BODY_BYTES = 64 << 20
_PROBE_TIMEOUT_S = 20.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, kw_only=True)
class FrontOptions:
    """What the front needs to know beside the core."""

    served: ServedModel
    info: dict[str, Any]
    """Start options, told by /server_info."""
    max_in_flight: int
    """Requests held at once, running or waiting; more are refused with HTTP 503."""
    seed: int
    """Seeds the stream from which requests without a seed get theirs."""


class Busy(Exception):
    """Too many requests are in flight."""


class _Waiter:
    """Where a handler waits for its sequence. Only the newest snapshot is kept: each contains all before it."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._newest: Snapshot | None = None

    def put(self, snapshot: Snapshot) -> None:
        self._newest = snapshot
        self._event.set()

    async def next(self) -> Snapshot:
        await self._event.wait()
        self._event.clear()
        assert self._newest is not None
        return self._newest


class Front:
    """Routes and their handlers."""

    def __init__(self, core: EngineCore, options: FrontOptions, died: Callable[[BaseException], None]) -> None:
        self._core = core
        self._options = options
        self._worker = Worker(core, self._deliver, died)
        self._metrics = Metrics(str(core.folder), lambda: self._worker.stats)
        self._keys = itertools.count(1)
        self._seeds = random.Random(options.seed)
        self._waiters: dict[int, _Waiter] = {}

    def app(self) -> web.Application:
        """The application; the worker starts with it."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[_typed_errors])
        post: dict[str, Handler] = {
            "/generate": self._generate,
            "/abort_request": self._abort,
            "/pause_generation": self._pause,
            "/continue_generation": self._continue,
            "/flush_cache": self._flush,
            "/update_weights_from_disk": self._update_weights,
            "/release_memory_occupation": self._release,
            "/resume_memory_occupation": self._reclaim,
            **WeightUpdates(self._worker).routes(),
        }
        get: dict[str, Handler] = {
            "/health": self._health,
            "/health_generate": self._health_generate,
            "/model_info": self._model_info,
            "/server_info": self._server_info,
            "/v1/loads": self._loads,
            "/metrics": self._get_metrics,
        }
        app.add_routes([web.post(path, handler) for path, handler in post.items()])
        app.add_routes([web.get(path, handler) for path, handler in get.items()])
        app.add_routes([web.get("/flush_cache", self._flush)])
        app.add_routes([web.get("/openapi.json", self._openapi)])
        self._worker.start()
        return app

    # --- generation --------------------------------------------------------------------------------------------

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        parsed = parse_generate(await request.read(), self._options.served)
        waiters = self._submit(parsed.prompts, stream=parsed.stream)
        ended: set[int] = set()
        try:
            if parsed.stream:
                [(key, waiter)] = waiters.items()
                return await self._stream(request, waiter, key, parsed, ended)
            answers = []
            for key, waiter in waiters.items():
                snapshot = await waiter.next()
                ended.add(key)
                answers.append(generation(_served(snapshot), return_logprob=parsed.return_logprob))
            return _json(answers if parsed.is_batch else answers[0])
        finally:
            self._dismiss(set(waiters), ended)

    async def _stream(
        self, request: web.Request, waiter: _Waiter, key: int, parsed: GenerateRequest, ended: set[int]
    ) -> web.StreamResponse:
        """Server-sent events; each holds everything sampled so far."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while key not in ended:
            snapshot = await waiter.next()
            if snapshot.end is not None:
                ended.add(key)
            data = msgspec.json.encode(generation(snapshot, return_logprob=parsed.return_logprob))
            await response.write(b"data: " + data + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    def _submit(self, prompts: list[Prompt], *, stream: bool) -> dict[int, _Waiter]:
        """Hand prompts to the worker; waiters by key. Raises Busy.

        A rid may be in use already: the request that a client gave up can still be on its way out.
        """
        if len(self._waiters) + len(prompts) > self._options.max_in_flight:
            raise Busy
        now = time.monotonic()
        sequences = [
            Sequence(
                key=next(self._keys),
                rid=prompt.rid,
                tokens=prompt.ids,
                num_prompt=len(prompt.ids),
                sampling=prompt.sampling,
                seed=self._seeds.randrange(MAX_SEED) if prompt.seed is None else prompt.seed,
                extra_key=prompt.extra_key,
                stream=stream,
                arrived_s=now,
            )
            for prompt in prompts
        ]
        waiters = {sequence.key: _Waiter() for sequence in sequences}
        self._waiters |= waiters
        self._worker.submit(sequences)
        return waiters

    def _dismiss(self, keys: set[int], ended: set[int]) -> None:
        """The handler is done with these; what has not ended is aborted."""
        for key in keys:
            self._waiters.pop(key, None)
        if keys - ended:
            self._worker.forget(keys - ended)

    def _deliver(self, snapshots: list[Snapshot]) -> None:
        for snapshot in snapshots:
            if snapshot.end is not None:
                self._metrics.observe(snapshot)
            waiter = self._waiters.get(snapshot.key)
            if waiter is not None:
                waiter.put(snapshot)

    # --- control -----------------------------------------------------------------------------------------------

    async def _abort(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), AbortBody)
        if not body.abort_all and not body.rid:
            raise BadRequest("rid is missing, and abort_all is not true")
        await self._worker.abort("" if body.abort_all else body.rid or "")
        return web.Response()

    async def _pause(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), PauseBody)
        await self._worker.pause(body.mode)
        return _json({"status": "ok", "message": f"Generation paused ({body.mode})."})

    async def _continue(self, request: web.Request) -> web.Response:
        await self._worker.resume()
        return _json({"status": "ok", "message": "Generation continued."})

    async def _flush(self, request: web.Request) -> web.Response:
        if await self._worker.flush():
            return web.Response(text="Cache flushed.\n")
        return web.Response(text="Cache not flushed: requests are running.\n", status=400)

    async def _update_weights(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), UpdateWeightsBody)
        update = Update(Path(body.model_path), body.weight_version, body.flush_cache)
        try:
            num_held = await self._worker.update(update, abort=body.abort_all_requests)
        except WeightsError as error:
            log.warning("weights were refused: %s", error)
            return _json({"success": False, "message": str(error), "num_paused_requests": 0}, status=400)
        log.info("serving weight version %s from %s", self._worker.stats.version, body.model_path)
        return _json({"success": True, "message": "Weights updated.", "num_paused_requests": num_held})

    async def _release(self, request: web.Request) -> web.Response:
        await self._worker.release(decode(await request.read(), MemoryBody).tags)
        return web.Response()

    async def _reclaim(self, request: web.Request) -> web.Response:
        await self._worker.reclaim(decode(await request.read(), MemoryBody).tags)
        return web.Response()

    # --- figures -----------------------------------------------------------------------------------------------

    async def _health(self, request: web.Request) -> web.Response:
        """Whether the process serves, paused or not: a pause is no reason to take an engine for dead."""
        return web.Response()

    async def _health_generate(self, request: web.Request) -> web.Response:
        """Whether a token can be generated now."""
        if self._worker.stats.blocked:
            return web.Response(status=503, text="paused or released\n")
        data = json.dumps({"input_ids": [0], "sampling_params": {"max_new_tokens": 1}}).encode()
        parsed = parse_generate(data, self._options.served)
        [(key, waiter)] = self._submit(parsed.prompts, stream=False).items()
        ended: set[int] = set()
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                snapshot = await waiter.next()
            ended.add(key)
            return web.Response(status=200 if snapshot.end in (End.STOP, End.LENGTH) else 503)
        except TimeoutError:
            return web.Response(status=503, text="no token in time\n")
        finally:
            self._dismiss({key}, ended)

    async def _model_info(self, request: web.Request) -> web.Response:
        return _json(
            {
                "model_path": str(self._core.folder),
                "is_generation": True,
                "weight_version": self._worker.stats.version,
                **self._options.info["model"],
            }
        )

    async def _server_info(self, request: web.Request) -> web.Response:
        state = {"weight_version": self._worker.stats.version, **self._load_figures()}
        return _json({**self._options.info["server"], "internal_states": [state]})

    async def _openapi(self, request: web.Request) -> web.Response:
        """Which paths there are."""
        return _json({"openapi": "3.1.0", "paths": {route.canonical: {} for route in request.app.router.resources()}})

    async def _loads(self, request: web.Request) -> web.Response:
        figures = self._load_figures()
        total = figures["num_running_reqs"] + figures["num_waiting_reqs"]
        return _json(
            {
                "timestamp": time.time(),
                "dp_rank_count": 1,
                "loads": [{"dp_rank": 0, **figures}],
                "aggregate": {"total_reqs": total, **figures},
            }
        )

    def _load_figures(self) -> dict[str, Any]:
        stats = self._worker.stats
        return {
            "num_running_reqs": stats.num_running,
            "num_waiting_reqs": stats.num_waiting,
            "num_used_tokens": stats.used_tokens - stats.parked_tokens,
            "max_total_num_tokens": stats.max_total_tokens,
            "max_running_requests": stats.max_running,
            "token_usage": stats.token_usage,
            "cache_hit_rate": stats.cache_hit_rate,
            "gen_throughput": stats.gen_throughput,
        }

    async def _get_metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.exposition(), headers={"Content-Type": "text/plain; version=0.0.4"})


def _served(snapshot: Snapshot) -> Snapshot:
    if snapshot.end is End.ERROR:
        raise web.HTTPInternalServerError(text=_error(snapshot.reason), content_type="application/json")
    return snapshot


@web.middleware
async def _typed_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except (BadRequest, WeightsError) as error:
        return web.Response(status=400, text=_error(str(error)), content_type="application/json")
    except Busy:
        return web.Response(status=503, text=_error("too many requests are in flight"), content_type="application/json")


def _error(message: str) -> str:
    return json.dumps({"error": {"message": message}})


def _json(content: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), status=status, content_type="application/json")
