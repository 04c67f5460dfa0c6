"""Where engines' weights are ordered from the trainer. The state of the exchange, without HTTP.

The trainer asks which orders stand and answers each once. A trainer that is restarted is told of all that stand, and
answers again: who waits for an answer gets it, and whoever had one that died with its trainer finds out from the
engine.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from agentrl.clock import monotonic
from agentrl.controller.trainer_desk import HOLD_S
from agentrl.errors import EngineError, Superseded, WeightsGone
from agentrl.wire import Ack, Orders, OrdersRequest, Transfer, WeightsOffer, WeightsOrder


class WeightsDesk:
    """One side is called by the fleet (`order`), the other by the trainer (`orders`, `offered`)."""

    def __init__(self, *, epoch: int, patience_s: float) -> None:
        """`patience_s`: how long an order waits for the trainer, which may be starting."""
        self._epoch = epoch
        self._patience_s = patience_s
        self._numbers = itertools.count(1)
        self._standing: dict[int, tuple[WeightsOrder, asyncio.Future[WeightsOffer]]] = {}
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def order(self, version: int, *, base: int | None, devices: Sequence[int]) -> AsyncIterator[Transfer]:
        """Weights for one engine; the trainer sends them within. Raises EngineError, WeightsGone."""
        number = next(self._numbers)
        order = WeightsOrder(number=number, version=version, base=base, devices=list(devices))
        answer: asyncio.Future[WeightsOffer] = asyncio.get_running_loop().create_future()
        self._standing[number] = order, answer
        self._notify()
        try:
            yield await self._answer(answer)
        finally:
            del self._standing[number]
            self._notify()

    async def _answer(self, answer: asyncio.Future[WeightsOffer]) -> Transfer:
        try:
            async with asyncio.timeout(self._patience_s):
                offer = await answer
        except TimeoutError:
            raise EngineError(f"the trainer offered no weights in {self._patience_s:g} s") from None
        if offer.transfer is None:
            raise WeightsGone(offer.problem)
        return offer.transfer

    async def orders(self, request: OrdersRequest) -> Orders:
        """All that stand, as soon as they are not the ones that the trainer knows. Raises Superseded."""
        self._check(request.epoch)
        deadline = monotonic() + HOLD_S
        while set(request.known) == set(self._standing):
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                break
        return Orders(standing=[order for order, _ in self._standing.values()])

    async def offered(self, message: WeightsOffer) -> Ack:
        """An answer; it counts if its order stands and has none. Raises Superseded."""
        self._check(message.epoch)
        _, answer = self._standing.get(message.number, (None, None))
        if answer is None or answer.done():
            return Ack(applied=False)
        answer.set_result(message)
        return Ack(applied=True)

    def _check(self, epoch: int) -> None:
        if epoch != self._epoch:
            raise Superseded(f"trainer of epoch {epoch}, controller of epoch {self._epoch}")

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
