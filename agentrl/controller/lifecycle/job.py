"""Puts a run together with its real edges, keeps it going, and takes it apart whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from random import SystemRandom
from secrets import token_urlsafe

import msgspec

from agentrl.clock import monotonic
from agentrl.cluster.cluster import Cluster, ProcessSpec
from agentrl.cluster.local import end_process
from agentrl.cluster.logs import log_tail
from agentrl.config.kubernetes import in_cluster
from agentrl.config.schema import JobConfig
from agentrl.controller.api import ControllerApi
from agentrl.controller.brain import assemble
from agentrl.controller.config import PublishMethod
from agentrl.controller.fleet.delivery import on_gpus
from agentrl.controller.harness import open_harness
from agentrl.controller.lifecycle.branching import load_origin, only_its_task
from agentrl.controller.lifecycle.clusters import ControllerPod, open_cluster
from agentrl.controller.lifecycle.record import RecordKeeper
from agentrl.controller.lifecycle.records import LedgerRecords
from agentrl.controller.lifecycle.recovery import Recovered
from agentrl.controller.lifecycle.run_directory import RunDirectory
from agentrl.controller.lifecycle.shared_memory import reap_shared_memory
from agentrl.controller.lifecycle.supervise import EngineSupervisors, TrainerSupervisor
from agentrl.errors import AgentrlError, LedgerError, ProcessFailed, RunPaused, UserError
from agentrl.ledger.ledger import Ledger
from agentrl.ledger.reader import LedgerReader
from agentrl.model.config import Recipe
from agentrl.model.prepare import PrepareJob, check_folder
from agentrl.observe.events import Evaluated, Event, Observer, Observers, Phase, Published, RunStarted, Warned
from agentrl.observe.files import MetricsFile
from agentrl.rollout.chat import Chat
from agentrl.sandbox.bare import danger
from agentrl.sandbox.choice import make_provider, reap
from agentrl.sandbox.config import Isolation
from agentrl.sandbox.owner import SandboxOwner
from agentrl.sandbox.provider import SandboxProvider
from agentrl.tasks.dataset import load_dataset, within_limits, without_builds, without_isolation
from agentrl.trainer.job import Publication, TrainerJob


class Outcome(StrEnum):
    """How a controller's life ended."""

    FINISHED = "finished"
    STOPPED = "stopped"
    PAUSED = "paused"
    """The circuit breaker tripped: somebody must look before it goes on."""
    FAILED = "failed"


@dataclass(frozen=True)
class Ended:
    """Outcome and one line about it."""

    outcome: Outcome
    detail: str


async def run_job(run: RunDirectory, config: JobConfig, observer: Observer, stop: asyncio.Event) -> Ended:
    """Run a job until its last step, a failure, or `stop`. Whatever the end, no process of the run is left.

    The caller holds the run (`RunDirectory.hold`).
    """
    ledger = Ledger.take(run.ledger)
    metrics = MetricsFile(run.metrics)
    began = monotonic()
    spent_s = float(LedgerReader.of(ledger).meta("wall_s") or 0.0)
    ledger.set_meta("status", "running")
    observer = Observers(observer, metrics, _WallTime(ledger, spent_s))
    outcome, detail = Outcome.FAILED, "internal error"
    try:
        running = asyncio.create_task(_run(run, config, ledger, observer), name="run")
        outcome, detail = await _until_ended(running, stop, observer)
        return Ended(outcome, detail)
    finally:
        with contextlib.suppress(LedgerError):  # a full disk is said already; the run counts as one without controller
            ledger.set_meta("wall_s", str(spent_s + monotonic() - began))
            ledger.set_meta("status", outcome.value)
            ledger.set_meta("detail", detail)
        metrics.close()
        ledger.close()


async def _until_ended(running: asyncio.Task[None], stop: asyncio.Event, observer: Observer) -> tuple[Outcome, str]:
    """Wait for the run, or cancel it when `stop` is set. Errors that are neither ours nor the machine's are bugs."""
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not running.done():
        observer.emit(Phase(phase="stopping", detail="as asked; once more to end at once"))
        running.cancel()
        await asyncio.wait({running})
    stopping.cancel()
    if running.cancelled():
        return Outcome.STOPPED, ""
    error = running.exception()
    if error is None:
        return Outcome.FINISHED, ""
    problems = list(leaves(error))
    if not all(isinstance(problem, AgentrlError | OSError) for problem in problems):
        raise error
    outcome = Outcome.PAUSED if all(isinstance(problem, RunPaused) for problem in problems) else Outcome.FAILED
    return outcome, "; ".join(str(problem) for problem in problems)


class _WallTime:
    """Keeps the time that a run took in its ledger, so that a killed controller loses only a step's."""

    def __init__(self, ledger: Ledger, spent_s: float) -> None:
        self._ledger = ledger
        self._origin = monotonic() - spent_s

    def emit(self, event: Event) -> None:
        if isinstance(event, Evaluated | Published):
            self._ledger.set_meta("wall_s", str(monotonic() - self._origin))


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors inside nested exception groups."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


async def _run(run: RunDirectory, config: JobConfig, ledger: Ledger, observer: Observer) -> None:
    """Prepare, start everything, run the controller, take everything down in the reverse order."""
    async with AsyncExitStack() as stack:
        if in_cluster(config):
            keeper = RecordKeeper(run)
            observer = Observers(observer, keeper)
            keeping = asyncio.create_task(keeper.keep(), name="record")
            stack.callback(keeping.cancel)
        clean_up(run, LedgerReader.of(ledger))
        stack.callback(reap_shared_memory, run.path)  # after the processes
        cluster = await open_cluster(run, config, ledger)
        stack.push_async_callback(cluster.close, config.cluster.stop_grace_s)
        observer.emit(Phase(phase="preparing", detail="tasks and model"))
        dataset = within_limits(load_dataset(config.tasks, workspace=run.tasks, sandbox=config.sandbox), config.sandbox)
        origin = load_origin(run, config)
        if origin is not None:
            dataset = only_its_task(dataset, origin)
        model = await prepare_weights(run, config, cluster)
        if config.sandbox.isolation is Isolation.none:
            observer.emit(Warned(message=danger()))
            dataset = without_isolation(dataset)
        reference = ControllerPod.here().owner if in_cluster(config) else None
        owner = SandboxOwner(run=run.path.name, epoch=ledger.epoch, reference=reference)
        provider = make_provider(config.sandbox, state_dir=run.sandboxes, owner=owner)
        stack.push_async_callback(provider.close)
        if not provider.capabilities.build:
            dataset = without_builds(dataset)
        _check_snapshots(config, provider)
        engines = EngineSupervisors(config, run=run, cluster=cluster, observer=observer)
        chat = Chat.load(model)
        harness = await open_harness(config.agent, chat, LedgerRecords(ledger), run, stack)
        brain = assemble(
            config,
            ledger=ledger,
            observer=observer,
            dataset=dataset,
            start_weights=str(model),
            chat=chat,
            provider=provider,
            engines=engines,
            entropy=SystemRandom(),
            origin=origin,
            harness=harness,
        )
        observer.emit(_run_started(run, config, brain.recovered))
        observer.emit(Phase(phase="starting", detail="engines and trainer"))
        token = token_urlsafe()
        api = ControllerApi(brain.desk, brain.weights_desk, token)
        place = cluster.place("controller")
        await api.start(place.host, place.port)
        stack.push_async_callback(api.close)
        job = _trainer_job(run, config, ledger.epoch, model=model, controller_url=api.url, token=token)
        await brain.run(TrainerSupervisor(job, run=run, cluster=cluster, desk=brain.desk, observer=observer))


def _check_snapshots(config: JobConfig, provider: SandboxProvider) -> None:
    """Raises UserError for a setting that needs snapshots, where this machine makes none."""
    wanted = {
        "tasks.branch_from": config.tasks.branch_from is not None,
        "sandbox.snapshot_every_turns": config.sandbox.snapshot_every_turns > 0,
        "sandbox.fork_groups": config.sandbox.fork_groups,
    }
    asking = [name for name, asked in wanted.items() if asked]
    if asking and not provider.capabilities.snapshot:
        raise UserError(f"{asking[0]}: this machine makes no snapshots", hint="`agentrl doctor` says why")


def clean_up(run: RunDirectory, reader: LedgerReader) -> list[str]:
    """End what an earlier controller of this run left over. Returns the roles of processes that were still there."""
    left = [row.role for row in reader.processes() if end_process(row.pid, row.start_ticks)]
    reap(run.load_config().sandbox, state_dir=run.sandboxes, run=run.path.name)
    reap_shared_memory(run.path)
    return left


def record_stopped(run: RunDirectory, detail: str) -> None:
    """Write down that a run has stopped whose controller cannot say so itself. The caller holds the run."""
    ledger = Ledger.take(run.ledger)
    ledger.set_meta("status", Outcome.STOPPED.value)
    ledger.set_meta("detail", detail)
    ledger.close()


async def prepare_weights(run: RunDirectory, config: JobConfig, cluster: Cluster) -> Path:
    """Folder of policy version 0: the user's own, or made by the recipe in a process of its own."""
    if config.model.recipe is Recipe.none:
        return check_folder(config.model)
    job = PrepareJob(config=config.model, seed=config.seed, out=str(run.model), threads=config.trainer.threads)
    job_file = run.work / "model.json"
    job_file.parent.mkdir(parents=True, exist_ok=True)
    job_file.write_bytes(msgspec.json.encode(job))
    log = run.logs / "model.log"
    argv = [cluster.place("model").python, "-m", "agentrl.model", "--job", str(job_file)]
    process = await cluster.start(ProcessSpec(role="model", argv=argv, log=log))
    if (code := await process.wait()) != 0:
        raise ProcessFailed(f"making the model ended with {code}: {log_tail(log)}", hint=f"its output is in {log}")
    return run.model


def _run_started(run: RunDirectory, config: JobConfig, recovered: Recovered) -> RunStarted:
    return RunStarted(
        name=run.name,
        directory=str(run.path),
        seed=config.seed,
        steps=config.schedule.steps,
        groups_per_step=config.schedule.groups_per_step,
        resumed_at=recovered.applied,
    )


def _trainer_job(
    run: RunDirectory, config: JobConfig, epoch: int, *, model: Path, controller_url: str, token: str
) -> TrainerJob:
    return TrainerJob(
        controller_url=controller_url,
        token=token,
        epoch=epoch,
        run_dir=str(run.path),
        model_path=str(model),
        temperature=config.agent.temperature,
        seed=config.seed,
        total_steps=config.schedule.steps,
        trainer=config.trainer,
        algorithm=config.algorithm,
        publication=_publication(config),
    )


def _publication(config: JobConfig) -> Publication:
    publish, inference = config.publish, config.inference
    # After the engines' own, where there are GPUs.
    device = inference.num_engines * inference.sglang.gpus_per_engine if on_gpus(inference) else -1
    return Publication(
        send=None if publish.method is PublishMethod.storage else publish.method.value,
        every=publish.storage_every,
        delta=publish.delta,
        dtype=inference.dtype.value,
        device=device,
        timeout_s=publish.timeout_s,
        address=publish.address,
    )
