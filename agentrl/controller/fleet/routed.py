"""Requests that go through a router: which engines may be serving one, and whose fault a failure is.

The router chooses, so until an answer comes only this much is known: an episode's requests go to the engine that
answered its last one, as long as that is in service; a first one may be on any engine. The answer is signed: its
version labels name the engine, and it is believed or not by what that engine was given.

Routing is cut first: an engine is taken from the router before it is told to stop what runs. A router that does not
obey is not asked again until whoever keeps it brings it back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from agentrl.clock import monotonic
from agentrl.controller.fleet.member import Member
from agentrl.controller.fleet.routing import Routing
from agentrl.errors import EngineError
from agentrl.inference.engine import Engine, Generation, SamplingParams
from agentrl.inference.router import Router

log = logging.getLogger(__name__)

RETRY_S = 0.2
"""Before a request is sent again that failed on its way through the router."""


class Routed:
    """The router, and what is known of the requests behind it."""

    def __init__(self, *, control_timeout_s: float, routing: Routing | None = None) -> None:
        """`control_timeout_s`: within which an engine that is well samples a token."""
        self.failed = asyncio.Event()
        """Set when the router does not obey; cleared by whoever replaces it."""
        self._control_timeout_s = control_timeout_s
        self._routing = routing or Routing()
        self._router: Router | None = None
        self._urls: dict[str, str] = {}
        """Engines that it is to send requests to."""
        self._last: dict[str, str] = {}
        """Engine of an episode's last answer."""
        self._sync = asyncio.Lock()
        self._asking = asyncio.Lock()
        self._asked_at = -1.0

    async def use(self, router: Router | None) -> None:
        """From now on this one, with the engines that are in service; None: there is none until further notice."""
        self._router = router
        await self.sync()

    async def add(self, engine: Engine) -> None:
        """Send requests to it."""
        self._urls[engine.name] = engine.url
        await self.sync()

    async def cut(self, name: str) -> None:
        """Send no more requests to it; those on their way arrive."""
        self.drop(name)
        await self.sync()

    def drop(self, name: str) -> None:
        """It is gone; the router hears of it with the next `sync`. What it answers until then is thrown away."""
        self._urls.pop(name, None)
        self._last = {episode: engine for episode, engine in self._last.items() if engine != name}

    async def sync(self) -> None:
        """Have the router send requests where it should."""
        async with self._sync:
            if self._router is None:
                return
            try:
                await self._router.serve(tuple(self._urls.values()))
            except EngineError as error:
                log.warning("%s", error)
                self._router = None
                self.failed.set()

    def forget(self, episode: str) -> None:
        self._last.pop(episode, None)

    def candidates(self, episode: str, in_service: Sequence[Member]) -> list[Member]:
        """The engines that its next request may be served by."""
        last = self._last.get(episode)
        return [member for member in in_service if last in (None, member.engine.name)]

    async def generate(
        self, episode: str, version: int, rid: str, ids: list[int], params: SamplingParams
    ) -> Generation:
        if self._router is None:
            raise EngineError("the router is down")
        generation = await self._router.generate(self._routing.key(episode), version, rid, ids, params)
        if generation.engine in self._urls:
            self._last[episode] = generation.engine
        return generation

    async def silent(self, members: Sequence[Member]) -> list[Member]:
        """Those of `members` that do not sample a token when they are asked directly. Callers that fail together share
        one answer: the others get an empty list."""
        failed_at = monotonic()
        async with self._asking:
            if self._asked_at > failed_at:
                return []
            async with asyncio.TaskGroup() as group:
                answers = [group.create_task(self._samples(member)) for member in members]
            self._asked_at = monotonic()
        return [member for member, answer in zip(members, answers, strict=True) if not answer.result()]

    async def _samples(self, member: Member) -> bool:
        try:
            async with asyncio.timeout(self._control_timeout_s):
                await member.engine.best_logprobs([1], [1])
        except (TimeoutError, EngineError):
            return False
        return True
