"""The step loop: collect a batch, train on it, publish the weights. The brain's one thread of events.

One path for every `schedule.swing`: when a batch is complete the swing engines, if there are any, go to the trainer;
the others go on. After training the balance decides whether they come back before the next batch. Publication suspends
those that generate. Unfinished episodes cross the step in any case.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Protocol

from agentrl.clock import monotonic, wall
from agentrl.config.schema import JobConfig
from agentrl.controller.balance.switching import Switching
from agentrl.controller.evaluation.heldout import AFTER, BEFORE, between, due, evaluate, is_evaluation
from agentrl.controller.fleet.fleet import Fleet
from agentrl.controller.fleet.publication import ProbeOf
from agentrl.controller.fleet.weights import Weights, weights_of
from agentrl.controller.lifecycle.recovery import Recovered, load_batch
from agentrl.controller.scheduling.admission import eval_episodes
from agentrl.controller.scheduling.collector import Collector
from agentrl.controller.trainer_desk import TrainerDesk
from agentrl.ledger.accounts import Accounts, PublicationRow
from agentrl.ledger.ledger import Ledger
from agentrl.ledger.rows import StepRow
from agentrl.observe.events import BatchReady, EnginesTold, Evaluated, Observer, Phase, Published, StepApplied, Warned
from agentrl.rollout.episode import EpisodeRunner
from agentrl.tasks.task import Task
from agentrl.wire import StepDone, TrainBatch

_REVIEW_S = 1.0
"""Between two looks at whether a second batch is still worth waiting for."""


class Trainer(Protocol):
    """Whoever starts the trainer and keeps it up."""

    async def keep(self) -> None:
        """Until the trainer ends because the run is finished. Raises ProcessFailed when restarting cannot help."""
        ...

    async def restart(self) -> None:
        """End a trainer that missed a deadline; `keep` starts it again."""
        ...


class Controller:
    """Runs a job from its recovered state to its last step."""

    def __init__(
        self,
        config: JobConfig,
        *,
        recovered: Recovered,
        heldout: tuple[Task, ...],
        collector: Collector,
        fleet: Fleet,
        desk: TrainerDesk,
        switching: Switching,
        trainer: Trainer,
        runner: EpisodeRunner,
        ledger: Ledger,
        accounts: Accounts,
        observer: Observer,
        entropy: Random,
        probe_of: ProbeOf,
        start_weights: str,
    ) -> None:
        """`entropy` makes batch ids that no other run has; `probe_of` finds what the trainer says of weights, and
        `start_weights` is where those of version 0 are."""
        self._config = config
        self._schedule = config.schedule
        self._recovered = recovered
        self._heldout = heldout
        self._collector = collector
        self._fleet = fleet
        self._desk = desk
        self._switching = switching
        self._trainer = trainer
        self._runner = runner
        self._ledger = ledger
        self._accounts = accounts
        self._observer = observer
        self._entropy = entropy
        self._probe_of = probe_of
        self._start_weights = start_weights
        self._received_bytes = 0
        """Of weights, up to the last publication."""

    async def run(self) -> None:
        """Until the last step is published and evaluated."""
        weights = self._fleet.weights
        if self._recovered.pending is None or weights.stored == weights.version:
            await self._fleet.wait_up()
        # Otherwise the trainer may be at the next version already, and engines can only come up with that one.
        if self._fleet.weights.version > 0:
            # A version whose publication was interrupted is live now: engines start on it.
            self._ledger.publish_step(self._fleet.weights.version)
        async with asyncio.TaskGroup() as group:
            collecting = group.create_task(self._collector.run(), name="collector")
            await self._evaluate(BEFORE)
            if self._due(self._fleet.weights.version):
                await self._evaluate(between(self._fleet.weights.version))
            if self._recovered.pending is not None:
                await self._train_and_publish(self._recovered.pending)
            for step in range(self._fleet.weights.version + 1, self._schedule.steps + 1):
                await self._train_and_publish(await self._collect(step))
            collecting.cancel()
        await self._evaluate(AFTER)
        self._desk.finish("all steps are done")

    # --- one step

    async def _collect(self, step: int) -> StepRow:
        """Wait for a complete batch of `step` and fix it in the ledger."""
        began = monotonic()
        self._phase("collecting", f"step {step}")
        self._collector.collect_for(step)
        self._switching.collecting()
        await self._until_complete(step)
        selection = self._collector.take()
        if len(self._fleet.swing) == self._config.inference.num_engines:
            self._collector.pause_launching()
        row = StepRow(
            step=step,
            batch_id=f"b{step:06d}-{self._entropy.getrandbits(32):08x}",
            assigned_at=wall(),
            time_to_batch_s=monotonic() - began,
            reward_sampled=selection.reward_sampled,
        )
        self._ledger.assign_batch(row, [g.group for g in selection.groups], [g.group for g in selection.consumed])
        self._observer.emit(
            BatchReady(
                step=step,
                time_to_batch_s=row.time_to_batch_s,
                reward_sampled=row.reward_sampled,
                num_groups=len(selection.groups),
                num_trajectories=sum(len(g.outcomes) for g in selection.groups),
            )
        )
        self._observer.emit(EnginesTold(step=step, engines=await self._fleet.gauges()))
        return row

    async def _until_complete(self, step: int) -> None:
        """Until a batch can be taken, and should be."""
        complete = asyncio.create_task(self._collector.wait_complete())
        try:
            while not complete.done():
                await asyncio.wait({complete}, timeout=self._switching.review_s)
                if not complete.done():
                    await self._switching.review(step)
        finally:
            complete.cancel()
        while self._switching.wait_for_more(step):
            await _pass(_REVIEW_S)

    async def _train_and_publish(self, row: StepRow) -> None:
        if self._fleet.swing and not self._fleet.lent:
            self._phase("switching", f"step {row.step}")
        await self._switching.to_training(row.step)
        self._phase("training", f"step {row.step}")
        began = monotonic()
        report = await self._train(load_batch(self._recovered.reader, row))
        self._switching.trained(monotonic() - began)
        self._ledger.apply_step(row.step, weights_path=report.weights_path, metrics=report.metrics)
        self._observer.emit(
            StepApplied(
                step=row.step,
                reward_sampled=row.reward_sampled,
                time_to_batch_s=row.time_to_batch_s,
                step_s=monotonic() - began,
                metrics=report.metrics,
            )
        )
        folder = report.weights_path
        probe = self._probe_of(folder)
        await self._publish(weights_of(row.step, folder, probe, config=self._config, start=self._start_weights))
        prune_weights(Path(folder).parent, keep=self._config.publish.keep_versions, in_use=self._fleet.weights_in_use)
        if self._due(row.step):
            await self._evaluate_between(row.step)

    async def _train(self, batch: TrainBatch) -> StepDone:
        """The trainer's report on a batch; a trainer that misses the step's deadline is restarted."""
        training = asyncio.create_task(self._desk.train(batch))
        try:
            while True:
                done, _ = await asyncio.wait({training}, timeout=self._config.trainer.step_timeout_s)
                if done:
                    return training.result()
                self._observer.emit(Warned(message=f"step {batch.step} not done in time; restarting the trainer"))
                await self._trainer.restart()
        finally:
            training.cancel()

    async def _publish(self, weights: Weights) -> None:
        self._phase("publishing", f"version {weights.version}")
        began = monotonic()
        last = weights.version == self._schedule.steps  # there every engine shall prove that it serves the result
        returns = last or self._switching.after_training(weights.version + 1)
        self._switching.publishing()
        if self._due(weights.version):
            self._fleet.let_only(is_evaluation)
        async with asyncio.TaskGroup() as group:
            if returns:
                group.create_task(self._switching.take_back())
            suspended = monotonic()
            await self._fleet.suspend(weights)
            await self._fleet.publish(weights)
            await self._fleet.resume()
            downtime_s = monotonic() - suspended
        engines = self._fleet.num_up
        self._ledger.publish_step(weights.version)
        if keep := self._config.observe.keep_trajectories:
            self._ledger.prune_trajectories(before_step=weights.version + 1 - keep)
        published = Published(
            version=weights.version,
            method=self._config.publish.method.value,
            latency_s=monotonic() - began,
            downtime_s=downtime_s,
            received_bytes=self._fleet.delivery.num_bytes - self._received_bytes,
            engines=engines,
            probe_difference=self._fleet.probe_difference,
        )
        self._received_bytes = self._fleet.delivery.num_bytes
        self._accounts.record_publication(PublicationRow(**asdict(published)))
        self._observer.emit(published)

    def _due(self, version: int) -> bool:
        return due(version, every=self._schedule.eval_every, steps=self._schedule.steps)

    async def _evaluate_between(self, version: int) -> None:
        """While training episodes stand still, with the engines that are there."""
        try:
            await self._evaluate(between(version))
        finally:
            self._fleet.let_only(None)

    async def _evaluate(self, label: str) -> None:
        """Once per label and run; nothing else acts meanwhile."""
        tasks = self._heldout[: self._schedule.eval_tasks]
        if not tasks or label in self._recovered.evaluated:
            return
        self._collector.pause_launching()
        if not self._fleet.num_up:
            await self._switching.take_back()
        self._phase("evaluating", label)
        version = self._fleet.weights.version
        success = await evaluate(
            label,
            version,
            tasks,
            runner=self._runner,
            ledger=self._ledger,
            seed=self._config.seed,
            max_live=eval_episodes(self._config),
        )
        if success is None:
            self._observer.emit(Warned(message=f"evaluation {label}: no episode with a usable verdict"))
            return
        self._observer.emit(Evaluated(label=label, version=version, num_tasks=len(tasks), success=success))

    def _phase(self, phase: str, detail: str) -> None:
        self._observer.emit(Phase(phase=phase, detail=detail))


async def _pass(seconds: float) -> None:
    """Let time pass, for what changes with time alone."""
    await asyncio.sleep(seconds)


def prune_weights(folder: Path, *, keep: int, in_use: Collection[str] = ()) -> None:
    """Remove all but the newest `keep` published versions, and those that are in use. Nothing else removes any."""
    versions = sorted(path for path in folder.glob("v*") if path.is_dir())
    for path in versions[: max(len(versions) - keep, 0)]:
        if str(path) not in in_use:
            shutil.rmtree(path)
