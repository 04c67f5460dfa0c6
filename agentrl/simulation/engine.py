"""A simulated inference engine: the `Engine` protocol in virtual time, by the laws of a hardware file.

`batching` decides what happens when; this module waits and answers. What is sampled comes from a `Speaker`; log-probs
are made up.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass, field

from agentrl.clock import monotonic
from agentrl.errors import EngineError, EngineRequestError
from agentrl.inference.engine import EngineLoad, FinishReason, Generation, PauseMode, SamplingParams
from agentrl.inference.labels import NOT_OURS
from agentrl.simulation.batching import Batching, EngineStats, Request
from agentrl.simulation.config import EngineLaw
from agentrl.simulation.groups import SimulatedGroups
from agentrl.wire import Transfer

Speaker = Callable[[str, list[int]], list[int]]
"""(request id, ids so far) -> the rest of the message that the model would sample, its stop token included."""

_VERSIONS = 64
_SPOILT = -7.0
_MIXED = -9.0
"""Of tokens from weights of which some are of another version than the others."""


def logprob_of(version: int) -> float:
    """Of every token that weights of this version sample: so a token tells which weights it is really from."""
    return -1.0 - (version % _VERSIONS) / _VERSIONS


@dataclass(eq=False)
class _Asked:
    """A request's caller, and what is known of its answer."""

    params: SamplingParams
    answer: asyncio.Future[Generation]
    versions: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """Both of the tokens that were sampled before the last change of weights."""


class SimulatedEngine:
    """Lives on the node whose task makes it: when that is killed, nothing is answered any more."""

    def __init__(
        self,
        name: str,
        law: EngineLaw,
        speaker: Speaker,
        *,
        version: int = 0,
        groups: SimulatedGroups | None = None,
    ) -> None:
        """`groups`: where the trainer sends weights."""
        self._name = name
        self._groups = groups or SimulatedGroups()
        self._law = law
        self._speaker = speaker
        self._version = version
        self._logprob = logprob_of(version)
        self._sticks = self._spoils = False
        self._stuck_at = self._logprob
        self._context = copy_context()
        self._numbers = itertools.count()
        self._batching = Batching(law, monotonic())
        self._asked: dict[int, _Asked] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._paused = self._loading = self._released = False
        self._alive = True
        self._hangs = False
        self._changed = asyncio.Event()

    @property
    def name(self) -> str:
        return self._name

    @property
    def url(self) -> str:
        return self._name

    # --- Engine

    async def generate(self, rid: str, input_ids: list[int], params: SamplingParams) -> Generation:
        self._check_request(input_ids, params)
        version = self._version
        await self._spend(self._law.request_s)
        await self._until(lambda: not (self._paused or self._loading or self._released))
        message = self._speaker(rid, input_ids)[: params.max_new_tokens]
        request = Request(number=next(self._numbers), rid=rid, ids=input_ids, message=message, version=version)
        answer: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._asked[request.number] = _Asked(params, answer)
        self._batching.submit(request)
        self._tick()
        try:
            return await answer
        except asyncio.CancelledError:
            # A server that loses the connection aborts the request.
            self._abort(lambda r: r is request)
            raise

    async def best_logprobs(self, ids: list[int], ends: list[int]) -> list[float]:
        async with self._request():
            await self._until(lambda: not (self._paused or self._loading or self._released))
            return [self._logprob] * len(ends)

    async def abort(self, rid: str | None) -> None:
        async with self._request():
            self._abort(lambda request: rid is None or request.rid.startswith(rid))

    async def pause(self, mode: PauseMode = PauseMode.ABORT) -> None:
        """Retracted requests differ from those in place by the flush of the cache alone."""
        async with self._request():
            self._paused = True
            if mode is PauseMode.ABORT:
                self._abort(lambda request: True)
            else:
                self._tick()
                self._batching.hold(monotonic())
                self._tick()

    async def resume(self) -> None:
        async with self._request():
            self._paused = False
            self._batching.release()
            self._tick()
            self._notify()

    async def flush_cache(self) -> None:
        async with self._request():
            self._check_idle("flush the cache")
            self._batching.flush()

    async def update_weights(self, path: str, version: int, *, flush_cache: bool = True) -> None:
        async with self._request():
            self._loading = True
            try:
                await self._until(lambda: self._paused or not self._batching.busy)
                await self._spend(self._law.update_weights_s)
                if flush_cache:
                    self._batching.flush()
                self._relabel(version)
                self._load(version)
            finally:
                self._loading = False
                self._notify()

    async def receive_weights(self, transfer: Transfer, *, flush_cache: bool = True) -> None:
        """As SGLang: each piece changes what serves, so that between the first and the last it is a mixture."""
        async with self._request():
            self._relabel(NOT_OURS)
        async with self._request():
            await self._until(lambda: self._paused or not self._batching.busy)
        for piece in transfer.pieces:
            async with self._request():
                self._groups.check(transfer)
                self._label_sampled()
                self._logprob = _MIXED
                await self._spend(self._law.update_weights_s / len(transfer.pieces))
                self._groups.check(transfer)
                if piece is transfer.pieces[-1]:
                    if flush_cache:
                        self._batching.flush()
                    self._relabel(transfer.version)
                    self._load(transfer.version)
        async with self._request():
            self._notify()

    async def checksums(self) -> dict[str, str]:
        async with self._request():
            return {"all": str(self._logprob)}

    async def release_memory(self) -> None:
        async with self._request():
            self._check_idle("release memory")
            self._released = True
            self._batching.flush()
            await self._spend(self._law.release_memory_s)

    async def resume_memory(self) -> None:
        async with self._request():
            await self._spend(self._law.resume_memory_s)
            self._released = False
            self._notify()

    async def load(self) -> EngineLoad:
        async with self._request():
            self._tick()
            return EngineLoad(
                num_running=self._batching.num_running,
                num_queued=self._batching.num_waiting,
                kv_tokens_used=self._law.kv_tokens - math.floor(self._batching.free_tokens),
                kv_tokens_capacity=self._law.kv_tokens,
            )

    async def gauges(self) -> dict[str, float]:
        load = await self.load()
        return {
            "num_running_reqs": load.num_running,
            "num_queue_reqs": load.num_queued,
            "token_usage": load.kv_tokens_used / load.kv_tokens_capacity,
        }

    async def version(self) -> int:
        async with self._request():
            return self._version

    async def build(self) -> dict[str, str]:
        async with self._request():
            return {"version": "simulated"}

    async def healthy(self) -> bool:
        return self._alive

    async def close(self) -> None:
        return

    # --- for the simulation

    @property
    def stats(self) -> EngineStats:
        """Up to now."""
        self._tick()
        return self._batching.stats

    def die(self) -> None:
        """As if the server were killed: everything fails from now on, and what runs fails with it."""
        self._alive = False
        for asked in self._asked.values():
            if not asked.answer.done():
                asked.answer.set_exception(EngineError(f"{self._name}: connection lost"))
        self._asked.clear()
        self._batching.abort(lambda request: True, monotonic())
        self._tick()
        self._notify()

    def hang(self) -> None:
        """As if the server had stopped without dying: connections stand, nothing is answered."""
        self._tick()
        self._hangs = True

    def stick(self) -> None:
        """From now on new weights are acknowledged, and the old ones go on serving."""
        self._sticks, self._stuck_at = True, self._logprob

    def spoil(self) -> None:
        """From now on weights are damaged when they are loaded."""
        self._spoils = True

    # --- inside

    def _relabel(self, version: int) -> None:
        self._label_sampled()
        self._version = version

    def _load(self, version: int) -> None:
        if self._sticks:
            self._logprob = self._stuck_at
        else:
            self._logprob = _SPOILT if self._spoils else logprob_of(version)

    def _tick(self) -> None:
        """Catch up with the clock, answer what has ended, and come back when something else happens."""
        if self._hangs:
            return
        now = monotonic()
        self._answer(self._batching.tick(now))
        when = self._batching.next_event()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if when < math.inf:
            self._timer = asyncio.get_running_loop().call_at(max(when, now), self._tick, context=self._context)

    def _abort(self, chosen: Callable[[Request], bool]) -> None:
        self._answer(self._batching.abort(chosen, monotonic()))
        self._tick()

    def _answer(self, ended: Iterable[Request]) -> None:
        for request in ended:
            asked = self._asked.pop(request.number, None)
            if asked is not None and not asked.answer.done():
                asked.answer.set_result(self._generation(request, asked))
        if not self._batching.busy:
            self._notify()

    def _label_sampled(self) -> None:
        """What the requests that stand still have sampled is of the version before."""
        for request in self._batching.requests():
            if asked := self._asked.get(request.number):
                num_new = request.num_sampled - len(asked.versions)
                asked.versions += [self._version] * num_new
                asked.logprobs += [self._logprob] * num_new

    def _generation(self, request: Request, asked: _Asked) -> Generation:
        ids = request.message[: request.num_sampled]
        if request.aborted:
            finish = FinishReason.ABORT
        else:
            finish = FinishReason.STOP if ids[-1] in asked.params.stop_token_ids else FinishReason.LENGTH
        return Generation(
            ids=ids,
            logprobs=asked.logprobs + [self._logprob] * (len(ids) - len(asked.versions)),
            versions=asked.versions + [self._version] * (len(ids) - len(asked.versions)),
            finish=finish,
            cached_tokens=request.num_cached or 0,
        )

    @asynccontextmanager
    async def _request(self) -> AsyncIterator[None]:
        """A control request on its way, and its answer on the way back."""
        await self._spend(self._law.request_s)
        yield
        await self._spend(self._law.request_s)

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for a state. Raises EngineError if the engine dies meanwhile."""
        self._check()
        while not condition():
            await self._changed.wait()
            self._check()

    async def _spend(self, seconds: float) -> None:
        """Take time. Raises EngineError if the engine is dead then; does not return if it hangs."""
        self._check()
        await asyncio.sleep(seconds)
        while self._hangs and self._alive:
            await self._changed.wait()
        self._check()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _check(self) -> None:
        if not self._alive:
            raise EngineError(f"{self._name}: connection refused")

    def _check_idle(self, what: str) -> None:
        self._tick()
        if self._batching.busy:
            raise EngineRequestError(f"{self._name}: cannot {what} while requests run")

    def _check_request(self, input_ids: list[int], params: SamplingParams) -> None:
        if not input_ids or params.max_new_tokens < 1:
            raise EngineRequestError(f"{self._name}: empty input_ids, or nothing to sample")
        if len(input_ids) + params.max_new_tokens > self._law.context_tokens:
            raise EngineRequestError(
                f"{self._name}: {len(input_ids)} + {params.max_new_tokens} tokens exceed {self._law.context_tokens}"
            )
