"""One engine of the fleet: what it was last brought to, and the requests that are on their way to it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from agentrl.controller.fleet.delivery import Delivery
from agentrl.controller.fleet.mistrust import cause
from agentrl.controller.fleet.publication import Checksums, difference
from agentrl.controller.fleet.weights import Weights
from agentrl.errors import EngineError, EngineMistrusted, EngineRequestError
from agentrl.inference.engine import Engine, Generation, PauseMode

FULL_SHARE = 0.9
"""Of its KV capacity, from which on an engine's queue waits for memory and not for a prefill."""

_GAUGES_TIMEOUT_S = 5.0
DRAIN_S = 1.0
"""How long answers of a paused engine are waited for before it is lent: what is still open then came too late."""


class Duty(Enum):
    """What an engine has to do."""

    SERVE = "serve"
    HOLD = "hold"
    """Take no request: weights are being changed."""
    LEND = "lend"
    """Take no request and have no memory: the trainer has the GPU."""


class Member:
    """Methods raise EngineError. Not for two callers at once."""

    def __init__(
        self,
        engine: Engine,
        *,
        delivery: Delivery,
        checksums: Checksums,
        probe_tolerance: float,
        started_on: Weights | None = None,
    ) -> None:
        """`started_on`: what its server has read at its start; None: not known."""
        self.engine = engine
        self.difference: float | None = None
        """Between the trainer's and its log-probs, when they were last compared."""
        self._delivery = delivery
        self._checksums = checksums
        self._probe_tolerance = probe_tolerance
        self._proven: Weights | None = None
        self._reload = False
        """Whatever version it says it serves, it is given the weights again: it has failed the probe, or lost them."""
        self._whole = None if started_on is None else started_on.stored
        """The version that it certainly holds; None: there is none."""
        self._unproven = False
        """It was given weights, and has not shown since that it serves them."""
        self._newest = -1
        """Version up to which its answers are believed."""
        self._settled = asyncio.Event()
        self._settled.set()
        self.capacity_tokens = 0
        """Of its KV cache; known once it has served."""
        self.holds: Weights | None = None
        """What it serves, or would if it had its memory; None: not asked yet."""
        self.folders = set() if started_on is None else {started_on.path}
        """Those that its server may have loaded last, and reads when it takes its memory back. Doubt removes none."""
        self.lent = False
        """It has given up its memory."""
        self._pause: PauseMode | None = None
        self._pause_known = True
        self._released = False
        """It was told to; that may have failed half way."""
        self._open: set[asyncio.Timeout] = set()
        self._drained = asyncio.Event()
        self._drained.set()

    @property
    def busy(self) -> bool:
        """Whether a request is on its way, or being served."""
        return bool(self._open)

    def distrust(self) -> None:
        """Something failed: whether it is paused, has its memory, and what it serves, is to be asked again."""
        self._pause_known = False
        self.lent = False
        self.holds = self._proven = self._whole = None

    async def bring(self, weights: Weights, duty: Duty) -> None:
        """To a duty, with these weights unless it is lent."""
        if duty is Duty.LEND:
            await self._lend()
            return
        self.lent = False
        if not self._pause_known:
            # What a failure left in it would be in the way of new weights, and nobody's any more.
            await self.hold(PauseMode.ABORT)
        if self._released:
            await self.engine.resume_memory()
            # What is in it now is not what was there, even if it says the same version.
            self._released, self._reload = False, True
            self.holds = self._proven = self._whole = None
        await self.serve(weights)
        await self._prove(weights)
        await self.hold(PauseMode.ABORT if duty is Duty.HOLD else None)
        self.capacity_tokens = (await self.engine.load()).kv_tokens_capacity

    async def hold(self, mode: PauseMode | None) -> None:
        """Pause it in this mode, or with None let it go on."""
        if not self._pause_known or mode is not self._pause:
            await (self.engine.resume() if mode is None else self.engine.pause(mode))
            self._pause, self._pause_known = mode, True

    async def num_short_of_kv(self, timeout_s: float) -> int:
        """Requests in its queue that wait for memory. 0 if it does not answer: who samples there finds out."""
        try:
            async with asyncio.timeout(timeout_s):
                load = await self.engine.load()
        except (TimeoutError, EngineError):
            return 0
        return load.num_queued if load.kv_tokens_used >= FULL_SHARE * load.kv_tokens_capacity else 0

    async def gauges(self) -> dict[str, float] | None:
        """What it says of its work; None if it does not answer soon."""
        try:
            async with asyncio.timeout(_GAUGES_TIMEOUT_S):
                return await self.engine.gauges()
        except (TimeoutError, EngineError):
            return None

    async def drained(self) -> None:
        """Until no request is open."""
        await self._drained.wait()

    async def renew(self, weights: Weights, *, flush_cache: bool) -> None:
        """To new weights, in the middle of its work. What stood still goes on, but is not believed until this ends."""
        self._settled.clear()
        try:
            await self.serve(weights, flush_cache=flush_cache)
            await self._prove(weights)
        finally:
            self._settled.set()

    async def believe(self, sent_under: Weights | None, generation: Generation) -> None:
        """Whether an answer is from weights that it had been given when it was asked, or has proven to serve since.

        Raises EngineMistrusted.
        """
        await self._settled.wait()
        oldest = 0 if sent_under is None else sent_under.version
        for version in set(generation.versions):
            if not oldest <= version <= self._newest:
                given = f"{oldest}" if version < oldest else f"no more than {self._newest}"
                raise EngineMistrusted(f"sampled from version {version}, but {given} was proven")

    async def serve(self, weights: Weights, *, flush_cache: bool = True) -> None:
        """Give it weights that it does not have, and ask what is served then."""
        if self.holds is None and not self._reload and await self.engine.version() == weights.version:
            self.holds, self.folders = weights, weights.folders
        if self.holds != weights:
            self.folders |= weights.folders
            base, self._whole = self._whole, None
            careful, self._unproven = self._unproven, True
            await self._delivery.deliver(self.engine, weights, base=base, careful=careful, flush_cache=flush_cache)
            served = await self.engine.version()
            if served != weights.version:
                raise EngineMistrusted(f"serves version {served} after an update to {weights.version}")
            self.holds, self.folders, self._reload = weights, weights.folders, False

    async def _prove(self, weights: Weights) -> None:
        """Its log-probs are the trainer's; weights that nobody has said anything of are taken as they are."""
        if self._proven == weights:
            return
        if (probe := weights.probe) is not None:
            await self.hold(None)  # a paused engine answers nothing
            try:
                self.difference = difference(probe, await self.engine.best_logprobs(probe.ids, probe.ends))
            except EngineRequestError as error:
                raise EngineMistrusted(f"refused the probe of version {weights.version}: {error}") from error
            if self.difference > self._probe_tolerance:
                self._reload = True
                raise EngineMistrusted(
                    f"log-probs differ by {self.difference:.2g} from the trainer's for version {weights.version},"
                    f" {self._probe_tolerance:g} is tolerated: {await self._cause(weights)}"
                )
            if probe.checksum is not None:
                told = await self.engine.checksums()
                if not self._checksums.agree(weights.version, probe, told):
                    self._reload = True
                    raise EngineMistrusted(f"the checksum of its weights is not that of version {weights.version}")
        self._proven, self._newest, self._whole = weights, weights.version, weights.version
        self._unproven = False

    async def _cause(self, weights: Weights) -> str:
        """Why it does not agree."""
        assert self.difference is not None
        older: tuple[int, float] | None = None
        if (before := weights.before) is not None and (probe := before.probe) is not None:
            older = before.version, difference(probe, await self.engine.best_logprobs(probe.ids, probe.ends))
        dtype = (await self.engine.build()).get("dtype")
        return cause(self.difference, older=older, dtype=dtype, tolerance=self._probe_tolerance)

    @contextmanager
    def request(self, timer: asyncio.Timeout) -> Iterator[None]:
        """A request is open within; if the engine is lent meanwhile, `timer` is made to expire at last."""
        self._open.add(timer)
        self._drained.clear()
        try:
            yield
        finally:
            self._open.discard(timer)
            if not self._open:
                self._drained.set()

    async def _lend(self) -> None:
        await self.hold(PauseMode.ABORT)
        if self.lent:
            return
        try:
            async with asyncio.timeout(DRAIN_S):
                await self._drained.wait()
        except TimeoutError:
            # They arrived after the pause, and would be held until the engine is back.
            for timer in self._open:
                if not timer.expired():
                    timer.reschedule(asyncio.get_running_loop().time())
            await self._drained.wait()
        self._released = True
        await self.engine.release_memory()
        self.lent = True
