"""Stand-ins for a real comparison: a baseline's entries in a ledger, and a trainer that changes nothing."""

from __future__ import annotations

from pathlib import Path

from agentrl.controller.scheduling.collector import write_end
from agentrl.controller.trainer_desk import TrainerDesk
from agentrl.ledger.ledger import Ledger
from agentrl.rollout.attempt import EpisodeSpec
from agentrl.rollout.episode import EpisodeResult
from agentrl.wire import NextRequest, RunFinished, StepDone, TrainBatch


class LedgerBook:
    """A `Book` of baselines that writes groups and episodes as the controller does, so that laws can be fitted."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._opened: set[str] = set()

    def started(self, spec: EpisodeSpec, member: int, attempt: int) -> None:
        if spec.group not in self._opened:
            self._opened.add(spec.group)
            self._ledger.open_group(spec.group, seq=int(spec.group[1:]), task=spec.task.name)
        self._ledger.start_episode(spec.episode, group=spec.group, member=member, attempt=attempt)

    def ended(self, result: EpisodeResult) -> None:
        write_end(self._ledger, result)


class StillTrainer:
    """The controller's `Trainer`, in its own process: reports every batch at once, with the weights there were."""

    def __init__(self, desk: TrainerDesk, *, epoch: int, weights: Path) -> None:
        self._desk = desk
        self._epoch = epoch
        self._weights = weights

    async def keep(self) -> None:
        version, batch_id = 0, None
        while True:
            reply = await self._desk.next(NextRequest(epoch=self._epoch, version=version, batch_id=batch_id))
            if isinstance(reply, RunFinished):
                return
            if isinstance(reply, TrainBatch):
                version, batch_id = reply.step, reply.batch_id
                await self._desk.done(
                    StepDone(
                        epoch=self._epoch,
                        version=version,
                        batch_id=batch_id,
                        weights_path=str(self._weights),
                        metrics={},
                    )
                )

    async def restart(self) -> None:
        """It holds nothing that could be stuck."""
