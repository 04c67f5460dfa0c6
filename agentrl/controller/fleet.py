"""The engines as one: where episodes sample, and how generation is suspended, resumed and given new weights.

Order of a suspension: the gate closes (nothing new is sent), then every engine aborts what runs and holds what still
arrives. What was sampled until then goes back to the episodes, which ask for the rest once the gate opens again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from agentrl.clock import monotonic
from agentrl.controller.routing import Routing
from agentrl.errors import EngineError
from agentrl.inference.engine import Engine, Generation, SamplingParams
from agentrl.rollout.active_time import ActiveTime

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Weights:
    """What the engines must serve."""

    path: str
    version: int


class Fleet:
    """All engines that are up. Implements `agentrl.rollout.episode.Sampler`."""

    def __init__(
        self,
        weights: Weights,
        active_time: ActiveTime,
        *,
        turn_timeout_s: float,
        control_timeout_s: float,
        on_failure: Callable[[str], None],
    ) -> None:
        """`control_timeout_s` bounds each order to an engine (pause, resume, update); one that misses it leaves."""
        self.weights = weights
        """Read by whoever starts an engine; changed only by `publish`."""
        self._active_time = active_time
        self._turn_timeout_s = turn_timeout_s
        self._control_timeout_s = control_timeout_s
        self._on_failure = on_failure
        self._engines: dict[str, Engine] = {}
        self._capacity: dict[str, int] = {}
        self._routing = Routing()
        self._gate = asyncio.Event()
        self._gate.set()
        self._any_up = asyncio.Event()
        self._on_change: Callable[[], None] = lambda: None

    @property
    def num_up(self) -> int:
        return len(self._engines)

    @property
    def kv_capacity_tokens(self) -> int:
        """KV capacity of the engines that are up, in tokens."""
        return sum(self._capacity.values())

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Be told whenever an engine has come or gone. One listener."""
        self._on_change = on_change

    async def wait_up(self) -> None:
        """Until at least one engine is up."""
        await self._any_up.wait()

    # --- engines come and go

    async def admit(self, engine: Engine) -> None:
        """Let a started engine serve. One that holds older weights gets the current ones first. Raises EngineError.

        Every call takes time in which a suspension or a publication may begin or end: it enters the fleet only when
        nothing has changed since it was made ready.
        """
        paused = False
        while True:
            weights, suspended = self.weights, not self._gate.is_set()
            if await engine.version() != weights.version:
                await _update(engine, weights)
            if suspended != paused:
                await (engine.pause() if suspended else engine.resume())
                paused = suspended
            load = await engine.load()
            if weights is self.weights and suspended is not self._gate.is_set():
                break
        self._engines[engine.name] = engine
        self._capacity[engine.name] = load.kv_tokens_capacity
        self._routing.add(engine.name)
        self._any_up.set()
        self._on_change()

    def dismiss(self, name: str) -> None:
        """The engine is gone, or not to be trusted until it is admitted again."""
        self._routing.remove(name)
        self._capacity.pop(name, None)
        if self._engines.pop(name, None) is None:
            return
        if not self._engines:
            self._any_up.clear()
        self._on_change()

    def _fail(self, name: str, problem: str) -> None:
        if name in self._engines:
            log.warning("engine %s: %s", name, problem)
            self.dismiss(name)
            self._on_failure(name)

    # --- sampling

    async def sample(self, episode: str, rid: str, ids: list[int], params: SamplingParams) -> Generation:
        """Sample on the episode's engine; on another one if that fails. Raises EngineError at the turn's deadline."""
        deadline = self._active_time.read(monotonic()) + self._turn_timeout_s
        problem = "no engine is up"
        hung: str | None = None
        while True:
            name = None
            await self._gate.wait()
            remaining_s = deadline - self._active_time.read(monotonic())
            if remaining_s <= 0:
                if hung is not None:
                    self._fail(hung, problem)
                raise EngineError(f"turn not sampled in {self._turn_timeout_s:g} s of active time: {problem}")
            try:
                async with asyncio.timeout(remaining_s):
                    await self._any_up.wait()
                    name = self._routing.route(episode)
                    if name is not None:
                        return await self._engines[name].generate(rid, ids, params)
            except TimeoutError:
                # Time may have stood still meanwhile: the loop's head decides.
                problem = f"no answer from {name}" if name else "no engine is up"
                hung = name
            except EngineError as error:
                problem = str(error)
                if name is not None:
                    self._fail(name, problem)

    def forget(self, episode: str) -> None:
        self._routing.forget(episode)

    # --- suspension and publication

    async def suspend(self) -> None:
        """Abort and hold all generation; clocks that bound agents stand still. Idempotent."""
        if not self._gate.is_set():
            return
        self._gate.clear()
        self._active_time.pause(monotonic())
        await self._each("pause", lambda engine: engine.pause())

    async def resume(self) -> None:
        """Let generation go on. Idempotent."""
        if self._gate.is_set():
            return
        # The gate first: an engine that is admitted meanwhile must find it open. What comes too early is held.
        self._gate.set()
        self._active_time.resume(monotonic())
        await self._each("resume", lambda engine: engine.resume())

    async def publish(self, weights: Weights) -> int:
        """Make every engine serve new weights; only while suspended. Returns how many do.

        An engine that fails, misses the deadline, or then reports another version is dismissed and reported as failed;
        whoever restarts it starts it on the new weights.
        """
        assert not self._gate.is_set(), "publish only while suspended"
        self.weights = weights
        await self._each("update weights", lambda engine: _update(engine, weights))
        return len(self._engines)

    async def _each(self, what: str, act: Callable[[Engine], Coroutine[Any, Any, None]]) -> None:
        """Do something with all engines at once; the ones that fail leave the fleet."""

        async def guarded(name: str, engine: Engine) -> None:
            try:
                async with asyncio.timeout(self._control_timeout_s):
                    await act(engine)
            except TimeoutError:
                self._fail(name, f"{what}: deadline passed")
            except EngineError as error:
                self._fail(name, f"{what}: {error}")

        async with asyncio.TaskGroup() as group:
            for name, engine in list(self._engines.items()):
                group.create_task(guarded(name, engine))


async def _update(engine: Engine, weights: Weights) -> None:
    """Load weights, and ask what is served then. Raises EngineError."""
    await engine.update_weights(weights.path, weights.version)
    served = await engine.version()
    if served != weights.version:
        raise EngineError(f"serves version {served} after an update to {weights.version}")
