"""What the fleet needs of a router between it and the engines, and SGLang's router as one.

A router chooses the engine of a request and keeps requests of one key together. Orders (pause, weights, memory) never
go through it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, Protocol

import aiohttp
import msgspec

from agentrl.errors import EngineError
from agentrl.inference.client import SGLangClient
from agentrl.inference.engine import Generation, SamplingParams

_POLL_S = 0.02
_CONTROL_TIMEOUT_S = 30.0


class Router(Protocol):
    """Methods raise EngineError when it cannot be reached, or cannot reach an engine."""

    async def generate(
        self, key: str, version: int, rid: str, input_ids: list[int], params: SamplingParams
    ) -> Generation:
        """As `Engine.generate`, on whichever engine it chooses; the generation says which. `version` is what all of
        them serve."""
        ...

    async def serve(self, urls: Collection[str]) -> None:
        """Send requests to these engines and to no other. Returns when it does. Requests in flight go on."""
        ...


class _Worker(msgspec.Struct):
    id: str
    url: str


class _Workers(msgspec.Struct):
    workers: list[_Worker]


class SGLangRouter:
    """SGLang's router (sglang-router 0.3) at `url`, started with `--policy manual`.

    Adding and removing workers is asynchronous there (HTTP 202), so the list is asked until it is as wanted. Of a
    request's body it passes on what it knows, `extra_key` and `priority` among it.
    """

    def __init__(self, url: str, *, request_timeout_s: float) -> None:
        self._url = url.rstrip("/")
        self._client = SGLangClient("router", url, request_timeout_s=request_timeout_s)
        self._timeout = aiohttp.ClientTimeout(total=_CONTROL_TIMEOUT_S)

    async def generate(
        self, key: str, version: int, rid: str, input_ids: list[int], params: SamplingParams
    ) -> Generation:
        return await self._client.generate_under(version, rid, input_ids, params, routing_key=key)

    async def serve(self, urls: Collection[str]) -> None:
        try:
            async with aiohttp.ClientSession(timeout=self._timeout) as session, asyncio.timeout(_CONTROL_TIMEOUT_S):
                asked: set[str] = set()
                while True:
                    async with session.get(self._url + "/workers") as reply:
                        workers = msgspec.json.decode(await reply.read(), type=_Workers).workers
                    there = {worker.url: worker.id for worker in workers}
                    missing, surplus = set(urls) - set(there), set(there) - set(urls)
                    if not missing and not surplus:
                        return
                    for url in missing - asked:
                        # Whether an engine is well is the fleet's business; one that is paused looks ill from outside.
                        body = {"url": url, "disable_health_check": True}
                        await self._order(session.post(self._url + "/workers", json=body))
                    for url in surplus - asked:
                        await self._order(session.delete(f"{self._url}/workers/{there[url]}"))
                    asked |= missing | surplus
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            raise EngineError(f"router: its workers are not as asked after {_CONTROL_TIMEOUT_S:g} s") from error
        except (aiohttp.ClientError, OSError, msgspec.DecodeError) as error:
            raise EngineError(f"router: /workers failed: {error!r}") from error

    async def _order(self, request: Any) -> None:
        async with request as reply:
            if reply.status not in (200, 202):
                raise EngineError(f"router: an order was answered {reply.status}: {(await reply.text())[:300]}")

    async def ready(self) -> bool:
        """Whether it answers; never raises."""
        try:
            async with (
                aiohttp.ClientSession(timeout=self._timeout) as session,
                session.get(self._url + "/liveness") as reply,
            ):
                return reply.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def close(self) -> None:
        await self._client.close()
