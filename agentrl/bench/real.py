"""Naive against full on real edges: embedded engines, real sandboxes, commands that really wait; fixed weights.

Both collect the same tasks with the same seeds, so an episode acts alike under both. Naive takes them batch by batch
and waits for all; full is the controller as it is, with a trainer that takes no time and changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from agentrl.bench import waiting_tasks
from agentrl.bench.records import LedgerBook, StillTrainer
from agentrl.clock import monotonic
from agentrl.cluster.local import LocalCluster
from agentrl.config.schema import JobConfig
from agentrl.controller.brain import assemble
from agentrl.controller.fleet.fleet import Fleet
from agentrl.controller.fleet.weights import Weights
from agentrl.controller.lifecycle.job import prepare_weights
from agentrl.controller.lifecycle.records import LedgerRecords
from agentrl.controller.lifecycle.run_directory import RunDirectory
from agentrl.controller.lifecycle.supervise import EngineSupervisors
from agentrl.controller.scheduling.task_order import task_index
from agentrl.inference.config import InferenceConfig
from agentrl.inference.engine import Engine
from agentrl.ledger.ledger import Ledger
from agentrl.ledger.reader import LedgerReader
from agentrl.model.config import ModelConfig, Recipe
from agentrl.observe.events import Observers
from agentrl.rollout.active_time import ActiveTime
from agentrl.rollout.chat import Chat
from agentrl.rollout.config import AgentConfig, ToolFormat
from agentrl.rollout.episode import EpisodeRunner
from agentrl.sandbox.bubblewrap.provider import BubblewrapProvider
from agentrl.sandbox.config import SandboxConfig
from agentrl.sandbox.provider import SandboxProvider
from agentrl.simulation.baselines import RoundRobin, collect_all
from agentrl.simulation.figures import WARM_UP_BATCHES
from agentrl.simulation.policies import OVER_PROVISION
from agentrl.tasks.config import TasksConfig
from agentrl.tasks.dataset import Dataset, load_dataset
from agentrl.tasks.task import Task
from agentrl.trainer.config import AlgorithmConfig

GROUPS, GROUP_SIZE = 8, 4
WINDOW_BATCHES = 3
_DEADLINE_S = 120.0

Say = Callable[[str], None]
"""Told what is going on."""


@dataclass(frozen=True, kw_only=True)
class Real:
    """What the machine did. Times in seconds."""

    config: JobConfig
    """Of full; naive differs only in what collects."""
    naive_batches_s: tuple[float, ...]
    """By batch, from its start to its last verdict."""
    full_cold_s: float
    full_steady_s: float
    """Mean time between batches, the first three dropped."""
    naive_ledger: Path
    full_ledger: Path

    @property
    def naive_s(self) -> float:
        return sum(self.naive_batches_s) / len(self.naive_batches_s)

    @property
    def ratio(self) -> float:
        """Steady interval of full over a batch of naive."""
        return self.full_steady_s / self.naive_s


def job(tasks: Path, *, batches: int, seed: int) -> JobConfig:
    """The job that full runs: `batches` batches, so that both see about the same tasks."""
    live = round(GROUPS * GROUP_SIZE * OVER_PROVISION)
    base = JobConfig()
    return JobConfig(
        seed=seed,
        model=ModelConfig(recipe=Recipe.tiny),
        tasks=TasksConfig(path=str(tasks), num_heldout=1),
        agent=AgentConfig(
            format=ToolFormat.line,
            max_turns=3,
            max_turn_tokens=8,
            max_episode_tokens=128,
            tool_timeout_s=_DEADLINE_S,
            turn_timeout_s=_DEADLINE_S,
        ),
        inference=InferenceConfig(num_engines=2, context_length=160),
        algorithm=AlgorithmConfig(group_size=GROUP_SIZE),
        schedule=replace(
            base.schedule,
            steps=batches,
            groups_per_step=GROUPS,
            swing="none",
            window_groups=WINDOW_BATCHES * GROUPS,
            max_live_episodes=live,
            max_policy_lag=batches,
            drop_zero_variance=False,
            eval_tasks=0,
        ),
        sandbox=SandboxConfig(max_sandboxes=live),
    )


async def measure(folder: Path, *, batches: int, seed: int, say: Say) -> Real:
    """Run both, one after the other, in an empty folder; nothing is left running."""
    tasks = folder / "tasks"
    waiting_tasks.write(tasks, count=GROUPS * batches + 1, seed=seed)
    config = job(tasks, batches=batches, seed=seed)
    run = RunDirectory.create(folder, "naive", stem="naive", config_text="", config=config)
    say("making the tiny model")
    async with _cluster(run) as (cluster, _):
        model = await prepare_weights(run, config, cluster)
    say(f"naive: {batches} batches of {GROUPS * GROUP_SIZE} trajectories")
    naive = await _naive(run, config, model, say)
    full = RunDirectory.create(folder, "full", stem="full", config_text="", config=config)
    say(f"full: {batches} batches")
    published = await _full(full, config, model)
    later = published[WARM_UP_BATCHES - 1 :]
    return Real(
        config=config,
        naive_batches_s=naive,
        full_cold_s=published[0],
        full_steady_s=(later[-1] - later[0]) / (len(later) - 1),
        naive_ledger=run.ledger,
        full_ledger=full.ledger,
    )


async def _naive(run: RunDirectory, config: JobConfig, model: Path, say: Say) -> tuple[float, ...]:
    """Batch after batch; engines and provider stay up between them, which favours naive."""
    dataset = load_dataset(config.tasks, workspace=run.tasks)
    schedule, times = config.schedule, []
    async with _cluster(run) as (cluster, ledger), _sandboxes(run, config) as provider:
        supervisors = EngineSupervisors(config, run=run, cluster=cluster, observer=Observers())
        roster = Roster(config, model, supervisors)
        async with background(supervisors.keep(roster)):
            await roster.wait_for(config.inference.num_engines)
            runner = EpisodeRunner(
                agent=config.agent,
                chat=Chat.load(model),
                sampler=RoundRobin(roster.members),
                provider=provider,
                recorder=LedgerRecords(ledger),
                active_time=ActiveTime(),
            )
            order = in_launch_order(dataset, config)
            for batch in range(schedule.steps):
                first = batch * schedule.groups_per_step
                began = monotonic()
                await collect_all(
                    runner,
                    order,
                    groups=range(first, first + schedule.groups_per_step),
                    group_size=config.algorithm.group_size,
                    seed=config.seed,
                    book=LedgerBook(ledger),
                )
                times.append(monotonic() - began)
                say(f"naive: batch {batch + 1} in {times[-1]:.1f} s")
    return tuple(times)


async def _full(run: RunDirectory, config: JobConfig, model: Path) -> tuple[float, ...]:
    """The controller, on the same edges. Returns when each batch was complete, since collecting began."""
    dataset = load_dataset(config.tasks, workspace=run.tasks)
    async with _cluster(run) as (cluster, ledger), _sandboxes(run, config) as provider:
        engines = EngineSupervisors(config, run=run, cluster=cluster, observer=Observers())
        brain = assemble(
            config,
            ledger=ledger,
            observer=Observers(),
            dataset=dataset,
            start_weights=str(model),
            chat=Chat.load(model),
            provider=provider,
            engines=engines,
            entropy=Random(config.seed),
        )
        await brain.run(StillTrainer(brain.desk, epoch=ledger.epoch, weights=model))
        reader = LedgerReader.of(ledger)
        began = min(times.started_at for times in reader.episode_times())
        return tuple(step.assigned_at - began for step in reader.steps())


def in_launch_order(dataset: Dataset, config: JobConfig) -> list[Task]:
    """The task of each group, as the controller opens them, for one pass over the data set."""
    count = len(dataset.train)
    return [dataset.train[task_index(seq, num_tasks=count, seed=config.seed)] for seq in range(count)]


class Roster(Fleet):
    """A fleet that also hands out its engines, for those who choose by themselves."""

    def __init__(self, config: JobConfig, model: Path, supervisors: EngineSupervisors) -> None:
        super().__init__(
            Weights(str(model), 0),
            ActiveTime(),
            turn_timeout_s=config.agent.turn_timeout_s,
            control_timeout_s=config.publish.timeout_s,
            on_failure=supervisors.report_failure,
            in_flight=config.publish.in_flight,
        )
        self.members: list[Engine] = []
        self._came = asyncio.Event()

    async def admit(self, engine: Engine) -> None:
        await super().admit(engine)
        self.members.append(engine)
        self._came.set()

    async def wait_for(self, count: int) -> None:
        """Until so many engines are up."""
        while len(self.members) < count:
            self._came.clear()
            await self._came.wait()


@asynccontextmanager
async def background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run something beside the block, and end it with the block. What it raises ends the block."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work)
        yield
        task.cancel()


@asynccontextmanager
async def _cluster(run: RunDirectory) -> AsyncIterator[tuple[LocalCluster, Ledger]]:
    """Processes of a run and its ledger, until the block ends."""
    ledger = Ledger.take(run.ledger)
    cluster = LocalCluster(LedgerRecords(ledger))
    try:
        yield cluster, ledger
    finally:
        await cluster.close(5.0)
        ledger.close()


@asynccontextmanager
async def _sandboxes(run: RunDirectory, config: JobConfig) -> AsyncIterator[SandboxProvider]:
    provider = BubblewrapProvider(config.sandbox, state_dir=run.work / "sandboxes")
    try:
        yield provider
    finally:
        await provider.close()
