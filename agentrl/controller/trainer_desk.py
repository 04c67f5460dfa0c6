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

    def __init__(self, *, epoch: int, applied: int, load_batch: Callable[[int], TrainBatch]) -> None:
        """`applied` steps were made before; `load_batch` gives their batches to a trainer with an older checkpoint."""
        self._epoch = epoch
        self._applied = applied
        self._load_batch = load_batch
        self._offered: TrainBatch | None = None
        self._done: asyncio.Future[StepDone] | None = None
        self._last_report: StepDone | None = None
        self._finished: str | None = None
        self._changed = asyncio.Event()
        self._on_state: Callable[[], None] = lambda: None
        self.asked = asyncio.Event()
        """The trainer has asked for a batch. Cleared by whoever starts a trainer, to see the new one arrive."""

    @property
    def busy(self) -> bool:
        """Whether a batch is offered that the trainer has not applied yet."""
        return self._done is not None and not self._done.done()

    def watch(self, on_state: Callable[[], None]) -> None:
        """Be told whenever `busy` has changed. One listener."""
        self._on_state = on_state

    # --- controller

    async def train(self, batch: TrainBatch) -> StepDone:
        """Offer the batch of a step and wait until the trainer has applied it."""
        assert self._done is None or self._done.done(), "one step at a time"
        self._offered = batch
        self._done = asyncio.get_running_loop().create_future()
        if self._last_report is not None and self._last_report.batch_id == batch.batch_id:
            # On disk since before a restart, and reported before it was offered again.
            self._done.set_result(self._last_report)
        self._notify()
        self._on_state()
        report = await self._done
        self._on_state()
        self._applied = batch.step
        return report

    def finish(self, reason: str) -> None:
        """No further batch will come."""
        self._finished = reason
        self._notify()

    # --- trainer

    async def next(self, request: NextRequest) -> NextReply:
        """The batch that follows the trainer's version, as soon as there is one. Raises Superseded."""
        self._check(request.epoch)
        self.asked.set()
        step = request.version + 1
        deadline = monotonic() + HOLD_S
        while True:
            if self._finished is not None:
                return RunFinished(reason=self._finished)
            if self._offered is not None and step == self._offered.step:
                return self._offered
            if step <= self._applied:
                return self._load_batch(step)
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                return NoBatchYet()

    async def done(self, message: StepDone) -> Ack:
        """A step is on the trainer's disk. Raises Superseded for another epoch, or a batch that is not the step's."""
        self._check(message.epoch)
        offered = self._offered
        if offered is not None and message.version < offered.step:
            return Ack(applied=False)
        if offered is not None and message.batch_id != offered.batch_id:
            raise Superseded(f"version {message.version} was made from a batch that this run does not know")
        applied = self._last_report is None or self._last_report.batch_id != message.batch_id
        self._last_report = message
        if self._done is not None and not self._done.done():
            self._done.set_result(message)
        return Ack(applied=applied)

    def _check(self, epoch: int) -> None:
        if epoch != self._epoch:
            raise Superseded(f"trainer of epoch {epoch}, controller of epoch {self._epoch}")

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
