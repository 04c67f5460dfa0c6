"""The loop of one rank: pull, step, export, checkpoint, report.

What is on disk only grows by whole folders, and a step's weights, its checkpoint and its report come in this order.
Killed anywhere, a restarted trainer finds the newest checkpoint, reports it again (the controller knows repeats), and
is served the batch that it had not finished.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from agentrl.errors import AgentrlError
from agentrl.trainer import batching, checkpoint, durable
from agentrl.trainer.export import full_weights
from agentrl.trainer.job import ExitCode, TrainerExit, TrainerJob, checkpoint_folder, weights_folder
from agentrl.trainer.learner import Learner, make_optimizer
from agentrl.trainer.link import ControllerLink
from agentrl.trainer.policy import Policy
from agentrl.trainer.probe import make_probe
from agentrl.trainer.publish import Publisher
from agentrl.trainer.world import World
from agentrl.wire import NextReply, NextRequest, RunFinished, StepDone, TrainBatch

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Position:
    """Where the trainer stands."""

    version: int
    batch_id: str | None
    """The batch that made this version; None at version 0."""
    report: StepDone | None
    """Sent before every request for a batch: a controller that has just started may not be ready for the first."""


class Worker:
    """One rank's state: model, optimizer, and the step it stands at."""

    def __init__(self, job: TrainerJob, world: World) -> None:
        self._job = job
        self._world = world
        self._run_dir = Path(job.run_dir)
        self._link = ControllerLink(job.controller_url, token=job.token, retry_s=job.controller_retry_s)
        mesh, start = world.mesh(), Path(job.model_path)
        self._policy = Policy.load(start, mesh, job.temperature, job.trainer)
        self._optimizer = make_optimizer(self._policy, job.trainer)
        self._learner = Learner(
            world=world,
            policy=self._policy,
            reference=Policy.load(start, mesh, job.temperature) if job.algorithm.kl_coef else None,
            optimizer=self._optimizer,
            trainer=job.trainer,
            algorithm=job.algorithm,
            total_steps=job.total_steps,
        )
        self._publisher = Publisher(job, self._link)
        self._position = self._resume()

    def run(self) -> None:
        """Train until the controller says that the run is finished. Raises TrainerExit otherwise."""
        log.info("ready at version %d, %d ranks", self._position.version, self._world.size)
        while True:
            reply = _decode_reply(self._world.share(self._exchange))
            if isinstance(reply, RunFinished):
                log.info("finished: %s", reply.reason)
                self._publisher.close()
                return
            if isinstance(reply, TrainBatch):
                self._position = self._step(reply)

    def _resume(self) -> Position:
        position = self._position_on_disk()
        if self._job.publication.send is None and not self._job.publication.delta:
            return position
        tensors = full_weights(self._policy.model, self._world.rank)
        if self._world.rank == 0:
            self._publisher.resume(position.version, tensors)
        return position

    def _position_on_disk(self) -> Position:
        folder = durable.newest(self._run_dir / "checkpoints", "step-")
        folder = Path(self._world.share(lambda: str(folder or "").encode()).decode()) if folder else None
        if folder is None:
            return Position(0, None, None)
        checkpoint.load_state(folder, self._policy.model, self._optimizer)
        record = checkpoint.read_record(folder)
        done = msgspec.structs.replace(
            record, epoch=self._job.epoch, weights_path=str(weights_folder(self._run_dir, record.version))
        )
        log.info("resumed at version %d", done.version)
        return Position(done.version, done.batch_id, done)

    def _exchange(self) -> bytes:
        """Rank 0: report the version, then ask for a batch."""
        if self._position.report:
            self._link.done(self._position.report)
        request = NextRequest(epoch=self._job.epoch, version=self._position.version, batch_id=self._position.batch_id)
        return self._link.next(request)

    def _step(self, reply: TrainBatch) -> Position:
        started = time.perf_counter()
        self._check(reply)
        torch.manual_seed(self._job.seed * 1_000_003 + reply.step)
        batch = batching.flatten(reply.trajectories, self._job.algorithm)
        metrics = self._learner.step(batch, reply.step)

        exported = time.perf_counter()
        weights = weights_folder(self._run_dir, reply.step)
        probe = make_probe(self._policy, reply.trajectories[0].sequences()[0])
        tensors = full_weights(self._policy.model, self._world.rank)
        if self._world.rank == 0:
            self._publisher.write(reply.step, tensors, probe)
        metrics["export_s"] = time.perf_counter() - exported

        saved = time.perf_counter()
        folder = checkpoint_folder(self._run_dir, reply.step)
        checkpoint.write_state(folder, self._policy.model, self._optimizer, self._world.rank)
        metrics["checkpoint_s"] = time.perf_counter() - saved
        metrics["step_s"] = time.perf_counter() - started
        done = StepDone(
            epoch=self._job.epoch,
            version=reply.step,
            batch_id=reply.batch_id,
            weights_path=str(weights),
            metrics=metrics,
        )
        if self._world.rank == 0:
            checkpoint.seal(folder, done)
            self._publisher.offer()
            self._prune()
            _log_step(done, self._job.total_steps)
        return Position(done.version, done.batch_id, done)

    def _check(self, batch: TrainBatch) -> None:
        if batch.step != self._position.version + 1 or not batch.trajectories:
            raise AgentrlError(
                f"the controller served {len(batch.trajectories)} trajectories as step {batch.step}"
                f" to a trainer at version {self._position.version}"
            )
        problems = batching.problems(batch.trajectories, self._policy.vocab_size)
        if problems:
            episode, reason = next(iter(problems.items()))
            raise TrainerExit(
                ExitCode.BAD_BATCH,
                f"{len(problems)} episodes cannot be trained on; {episode}: {reason}",
                episodes=list(problems),
            )

    def _prune(self) -> None:
        """Complete weights stay: the controller removes them, since it alone knows what engines will still read."""
        durable.prune(self._run_dir / "checkpoints", "step-", self._job.trainer.keep_checkpoints)
        durable.sweep(self._run_dir / "weights", "v")


def _decode_reply(data: bytes) -> NextReply:
    return msgspec.msgpack.decode(data, type=NextReply)


def _log_step(done: StepDone, total_steps: int) -> None:
    shown = ("reward_mean", "loss", "grad_norm", "step_s")
    log.info(
        "step %d/%d: %s", done.version, total_steps, " ".join(f"{name} {done.metrics[name]:.4g}" for name in shown)
    )
