"""Where the trainer pulls batches and reports steps. The state of the exchange, without HTTP.

Invariant: one batch per step, whoever asks how often; a step is applied once, however often it is reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agentrl.clock import monotonic
from agentrl.errors import Superseded
from agentrl.wire import Ack, NextReply, NextRequest, NoBatchYet, RunFinished, StepDone, TrainBatch

HOLD_S = 20.0
"""How long a request for a batch is held before `NoBatchYet`."""


class TrainerDesk:
    """One side is called by the trainer (`next`, `done`), the other by the controller (`train`, `finish`)."""

    def __init__(self, *, epoch: int, load_batch: Callable[[int], TrainBatch]) -> None:
        """`load_batch` gives the recorded batch of any assigned step: a trainer whose checkpoint is old asks again."""
        self._epoch = epoch
        self._load_batch = load_batch
        self._offered: TrainBatch | None = None
        self._done: asyncio.Future[StepDone] | None = None
        self._finished: str | None = None
        self._changed = asyncio.Event()
        self.asked_at: float | None = None
        """When the trainer last asked for a batch, on the loop's clock."""

    # --- controller

    async def train(self, batch: TrainBatch) -> StepDone:
        """Offer the batch of a step and wait until the trainer has applied it."""
        assert self._done is None or self._done.done(), "one step at a time"
        self._offered = batch
        self._done = asyncio.get_running_loop().create_future()
        self._notify()
        return await self._done

    def finish(self, reason: str) -> None:
        """No further batch will come."""
        self._finished = reason
        self._notify()

    # --- trainer

    async def next(self, request: NextRequest) -> NextReply:
        """The batch that follows the trainer's version, as soon as there is one. Raises Superseded."""
        self._check(request.epoch)
        self.asked_at = monotonic()
        step = request.version + 1
        deadline = monotonic() + HOLD_S
        while True:
            if self._finished is not None:
                return RunFinished(reason=self._finished)
            if self._offered is not None and step <= self._offered.step:
                return self._offered if step == self._offered.step else self._load_batch(step)
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                return NoBatchYet()

    async def done(self, message: StepDone) -> Ack:
        """A step is on the trainer's disk. Raises Superseded for another epoch, or a batch that was never offered."""
        self._check(message.epoch)
        if self._offered is None or message.version < self._offered.step:
            return Ack(applied=False)
        if message.version > self._offered.step or message.batch_id != self._offered.batch_id:
            raise Superseded(f"version {message.version} was made from a batch that this run does not know")
        assert self._done is not None
        if self._done.done():
            return Ack(applied=False)
        self._done.set_result(message)
        return Ack(applied=True)

    def _check(self, epoch: int) -> None:
        if epoch != self._epoch:
            raise Superseded(f"trainer of epoch {epoch}, controller of epoch {self._epoch}")

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
