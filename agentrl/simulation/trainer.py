"""A simulated trainer: pulls batches from the desk, takes its time over them, and survives on its checkpoint."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from agentrl.controller.trainer_desk import TrainerDesk
from agentrl.controller.weights_desk import WeightsDesk
from agentrl.simulation.config import TrainerLaw
from agentrl.simulation.engine import logprob_of
from agentrl.simulation.groups import SimulatedGroups
from agentrl.simulation.loop import kill, spawn
from agentrl.wire import NextRequest, OrdersRequest, Probe, RunFinished, StepDone, TrainBatch, WeightsOffer

_WEIGHTS = "/simulated/v"


def weights_path(version: int) -> str:
    """Where the weights of a version would lie."""
    return f"{_WEIGHTS}{version:06d}"


def probe_of(path: str) -> Probe | None:
    """What would lie beside them; nothing beside those that a run starts from, or that no simulated trainer made."""
    version = int(path.removeprefix(_WEIGHTS)) if path.startswith(_WEIGHTS) else 0
    return Probe(ids=[1, 2, 3], ends=[1, 2], logprobs=[logprob_of(version)] * 2) if version else None


@dataclass(kw_only=True)
class TrainerDisk:
    """What outlives a trainer: its checkpoint."""

    report: StepDone | None = None
    """Of the step that made the weights; None at version 0."""
    on_checkpoint: Callable[[TrainBatch], None] = lambda _: None
    """Told of every batch that changes the weights."""

    @property
    def version(self) -> int:
        return self.report.version if self.report else 0

    def checkpoint(self, batch: TrainBatch, report: StepDone) -> None:
        """At once and whole, as a rename is."""
        self.report = report
        self.on_checkpoint(batch)


class SimulatedTrainer:
    """The controller's `Trainer`, on a node of its own that can be killed."""

    def __init__(
        self,
        law: TrainerLaw,
        *,
        num_gpus: int,
        desk: TrainerDesk,
        weights_desk: WeightsDesk,
        groups: SimulatedGroups,
        epoch: int,
        disk: TrainerDisk,
    ) -> None:
        self._law = law
        self._weights_desk = weights_desk
        self._groups = groups
        self.num_gpus = num_gpus
        self._desk = desk
        self._epoch = epoch
        self._disk = disk
        self._lives = itertools.count()
        self._lost = asyncio.Event()
        self.node = ""
        """The node on which it runs now."""
        self.busy_s = 0.0

    async def keep(self) -> None:
        running = await self._live()
        while not running.done():
            await asyncio.sleep(self._law.restart_s)
            running = await self._live()
        running.result()

    async def restart(self) -> None:
        self._lost.set()

    def die(self) -> None:
        """As if its processes were killed; whoever keeps it notices."""
        kill(self.node)
        self._groups.lose(self.node)
        self._lost.set()

    async def _live(self) -> asyncio.Task[None]:
        """One life, to its end or its death."""
        self.node = f"trainer-{self._epoch}.{next(self._lives)}"
        self._lost.clear()
        running = spawn(self.node, self._train(), name=self.node)
        sending = spawn(self.node, self._send(), name=f"{self.node} orders")
        lost = asyncio.create_task(self._lost.wait())
        try:
            await asyncio.wait({running, lost}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()
            if running.done():
                sending.cancel()
            else:
                kill(self.node)
                self._groups.lose(self.node)
        return running

    async def _train(self) -> None:
        """From the checkpoint to the end of the run; what was done is reported before anything is asked for."""
        while True:
            report = self._disk.report
            if report is not None:
                await self._desk.done(msgspec.structs.replace(report, epoch=self._epoch))
            batch_id = report.batch_id if report else None
            request = NextRequest(epoch=self._epoch, version=self._disk.version, batch_id=batch_id)
            reply = await self._desk.next(request)
            if isinstance(reply, RunFinished):
                return
            if isinstance(reply, TrainBatch):
                await self._apply(reply)

    async def _send(self) -> None:
        """Answers orders for weights with those of the checkpoint, whatever else it does."""
        node, known = self.node, set[int]()
        while True:
            request = OrdersRequest(epoch=self._epoch, known=sorted(known))
            standing = {order.number: order for order in (await self._weights_desk.orders(request)).standing}
            for number in standing.keys() - known:
                order = standing[number]
                there = order.version == self._disk.version
                transfer = self._groups.open(node, number, order.version) if there else None
                problem = "" if there else f"version {self._disk.version} is here"
                await self._weights_desk.offered(
                    WeightsOffer(epoch=self._epoch, number=number, transfer=transfer, problem=problem)
                )
            known = set(standing)

    async def _apply(self, batch: TrainBatch) -> None:
        assert batch.step == self._disk.version + 1
        tokens = sum(trajectory.num_tokens for trajectory in batch.trajectories)
        step_s = self._law.step_s + self._law.step_per_token_s * tokens / self.num_gpus
        await asyncio.sleep(step_s)
        self.busy_s += step_s
        report = StepDone(
            epoch=self._epoch,
            version=batch.step,
            batch_id=batch.batch_id,
            weights_path=weights_path(batch.step),
            metrics={"step_s": step_s},
        )
        self._disk.checkpoint(batch, report)
        await asyncio.sleep(0)
