"""The controller's HTTP API: the trainer's calls, for whoever has the run's token."""

from __future__ import annotations

from collections.abc import Callable
from hmac import compare_digest
from typing import Any

import msgspec
from aiohttp import web

from agentrl.controller.trainer_desk import TrainerDesk
from agentrl.controller.weights_desk import WeightsDesk
from agentrl.errors import Superseded
from agentrl.wire import NextRequest, OrdersRequest, StepDone, WeightsOffer, decode, encode

_MAX_BODY_BYTES = 16 << 20


class ControllerApi:
    """Serves until closed."""

    def __init__(self, desk: TrainerDesk, weights_desk: WeightsDesk, token: str) -> None:
        """`token`: what a request must bring as its bearer."""
        self._desk = desk
        self._weights_desk = weights_desk
        self._authorization = f"Bearer {token}".encode()
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; `url` is then the address, without a trailing slash."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_post("/trainer/next", self._next)
        app.router.add_post("/trainer/done", self._done)
        app.router.add_post("/trainer/orders", self._orders)
        app.router.add_post("/trainer/offer", self._offer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        bound_host, bound_port = self._runner.addresses[0][:2]
        self.url = f"http://[{bound_host}]:{bound_port}" if ":" in bound_host else f"http://{bound_host}:{bound_port}"

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _next(self, request: web.Request) -> web.Response:
        return await self._answer(request, NextRequest, self._desk.next)

    async def _done(self, request: web.Request) -> web.Response:
        return await self._answer(request, StepDone, self._desk.done)

    async def _orders(self, request: web.Request) -> web.Response:
        return await self._answer(request, OrdersRequest, self._weights_desk.orders)

    async def _offer(self, request: web.Request) -> web.Response:
        return await self._answer(request, WeightsOffer, self._weights_desk.offered)

    async def _answer(self, request: web.Request, kind: type[Any], act: Callable[[Any], Any]) -> web.Response:
        if not compare_digest(request.headers.get("Authorization", "").encode(), self._authorization):
            return web.Response(status=401, text="not this run's token")
        try:
            message = decode(await request.read(), kind)
            reply = await act(message)
        except msgspec.DecodeError as error:
            return web.Response(status=400, text=str(error))
        except Superseded as error:
            return web.Response(status=409, text=str(error))
        return web.Response(body=encode(reply), content_type="application/msgpack")
