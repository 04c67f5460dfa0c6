"""Evaluates weights apart from any run: engines, sandboxes and agents of its own, as a run would have them.

What enters a result was sampled from one version of the weights: engines must agree with the trainer's probe, where it
left one, before they are asked anything; each answer says which version sampled each token; and before an episode
counts, all its tokens are looked at once more.
"""

from __future__ import annotations

import asyncio
import hashlib
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from agentrl.cluster.local import LocalCluster
from agentrl.config.schema import JobConfig
from agentrl.controller.brain import places_for, routed_for
from agentrl.controller.evaluation.fingerprint import fingerprint
from agentrl.controller.evaluation.pass_at_k import estimate
from agentrl.controller.fleet.fleet import Fleet
from agentrl.controller.fleet.publication import read_probe, tolerance
from agentrl.controller.fleet.weights import Weights
from agentrl.controller.harness import open_harness
from agentrl.controller.lifecycle.run_directory import RunDirectory
from agentrl.controller.lifecycle.supervise import EngineSupervisors
from agentrl.controller.scheduling.admission import max_live_episodes
from agentrl.controller.scheduling.collector import evidence_json
from agentrl.errors import EngineError, EngineMistrusted
from agentrl.inference.engine import Engine
from agentrl.ledger.evaluations import EvaluationLedger, EvaluationStart, SampleRow
from agentrl.observe.events import Event
from agentrl.rollout.active_time import ActiveTime
from agentrl.rollout.attempt import EpisodeSpec
from agentrl.rollout.chat import Chat
from agentrl.rollout.edges import TurnRecord
from agentrl.rollout.episode import EpisodeResult, EpisodeRunner
from agentrl.rollout.verdict import Verdict
from agentrl.sandbox.choice import make_provider
from agentrl.tasks.task import Task
from agentrl.wire import Trajectory

_RESTARTS = 1
"""Of an engine: what fails twice here is not worth waiting for, unlike in a run of days."""


@dataclass(frozen=True, kw_only=True)
class EvaluationJob:
    """What to do. `config` is that of the weights' run, with overrides."""

    config: JobConfig
    weights: Path
    version: int
    tasks_name: str
    """As it was asked for."""
    tasks: tuple[Task, ...]
    num_samples: int
    """Of each task."""
    ks: tuple[int, ...]
    """None above `num_samples`."""
    temperature: float
    """0: greedy."""
    seed: int
    subject: str
    """Folder of the weights, as reports name it."""

    @property
    def num_episodes(self) -> int:
        return len(self.tasks) * self.num_samples


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """What came of it."""

    number: int
    """In its ledger."""
    figures: dict[str, Any]


async def evaluate_weights(
    job: EvaluationJob, place: RunDirectory, ledger: EvaluationLedger, on_result: Callable[[], None]
) -> Evaluated:
    """Everything is started and ended within. `on_result` is called after each sample.

    Raises ProcessFailed if no engine can be had, EngineMistrusted for engines that do not serve these weights.
    """
    config = _settings(job)
    async with AsyncExitStack() as stack:
        cluster = LocalCluster(_NoBook())
        stack.push_async_callback(cluster.close, config.cluster.stop_grace_s)
        provider = make_provider(config.sandbox, state_dir=place.sandboxes)
        stack.push_async_callback(provider.close)
        mistrusted: list[str] = []
        engines = EngineSupervisors(config, run=place, cluster=cluster, observer=_NoObserver())
        active_time = ActiveTime()
        probe = read_probe(str(job.weights)) if config.publish.probe else None
        fleet = Fleet(
            Weights(str(job.weights), job.version, probe),
            active_time,
            turn_timeout_s=config.agent.turn_timeout_s,
            control_timeout_s=config.publish.timeout_s,
            on_failure=engines.report_failure,
            on_quarantine=lambda name, why: mistrusted.append(f"{name}: {why}"),
            probe_tolerance=tolerance(config.publish, config.inference.dtype),
            places=places_for(config),
            routed=routed_for(config),
        )
        chat, recorder = Chat.load(job.weights), _NoRecorder()
        harness = await open_harness(config.agent, chat, _NoBook(), place, stack)
        runner = EpisodeRunner(
            agent=config.agent,
            chat=chat,
            sampler=fleet,
            provider=provider,
            recorder=recorder,
            active_time=active_time,
            harness=None if harness is None else harness(fleet, recorder),
        )
        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(engines.keep(fleet), name="engines")
            await fleet.wait_up()
            start = EvaluationStart(
                weights=job.subject,
                version=job.version,
                tasks=job.tasks_name,
                num_tasks=len(job.tasks),
                num_samples=job.num_samples,
                seed=job.seed,
                fingerprint=fingerprint(
                    config,
                    greedy=job.temperature == 0,
                    build=await build_of(fleet.engines),
                    tasks=job.tasks,
                    weights_folder=job.weights,
                ),
            )
            number = ledger.begin(start)

            def record(row: SampleRow) -> None:
                ledger.record(number, row)
                on_result()

            rows = await _sample_all(job, config, runner, record)
            difference = fleet.probe_difference
            keeping.cancel()
        figures = figures_of(rows, job.ks) | {"probe_difference": difference, "mistrusted": mistrusted}
        ledger.end(number, figures)
    return Evaluated(number=number, figures=figures)


async def build_of(engines: Sequence[Engine]) -> dict[str, str]:
    """What they say of themselves. Raises EngineError; EngineMistrusted if not all say the same."""
    builds = {engine.name: await engine.build() for engine in engines}
    if not builds:
        raise EngineError("no engine is in service any more")
    (first, build), *others = builds.items()
    for name, other in others:
        if other != build:
            raise EngineMistrusted(f"{name} is not built as {first} is: {other} against {build}")
    return build


async def _sample_all(
    job: EvaluationJob, config: JobConfig, runner: EpisodeRunner, record: Callable[[SampleRow], None]
) -> list[SampleRow]:
    slots = asyncio.Semaphore(max_live_episodes(config))

    async def one(task: Task, sample: int) -> SampleRow:
        async with slots:
            result = await _sample(job, task, sample, runner, retries=config.schedule.max_infra_retries)
        row = _row(result, sample, job.version)
        record(row)
        return row

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(one(task, sample)) for task in job.tasks for sample in range(job.num_samples)]
    return [task.result() for task in running]


async def _sample(job: EvaluationJob, task: Task, sample: int, runner: EpisodeRunner, *, retries: int) -> EpisodeResult:
    """One that infrastructure lost is drawn again, under the same seeds."""
    spec = EpisodeSpec(
        episode=episode_name(task.name, sample),
        group=task.name,
        task=task,
        seed=job.seed,
        greedy=job.temperature == 0,
    )
    result = await runner.run(spec)
    for _ in range(retries):
        if result.verdict is not Verdict.INFRA_FAILURE:
            break
        result = await runner.run(spec)
    return result


def episode_name(task: str, sample: int) -> str:
    """Of fixed length. A task's samples have the same seeds whatever else is evaluated with it."""
    digest = hashlib.blake2b(task.encode(), digest_size=6).hexdigest()
    return f"x{digest}.n{sample:05d}"


def _row(result: EpisodeResult, sample: int, version: int) -> SampleRow:
    return SampleRow(
        task=result.spec.task.name,
        sample=sample,
        verdict=result.verdict.value,
        cause=result.cause.value,
        reward=result.trajectory.reward if result.trajectory else None,
        num_turns=result.num_turns,
        num_sampled=proven_tokens(result.trajectory, version) if result.trajectory else 0,
        evidence=evidence_json(result),
    )


def proven_tokens(trajectory: Trajectory, version: int) -> int:
    """Tokens that the policy sampled, all of them of `version`. Raises EngineMistrusted if one is not."""
    versions = trajectory.versions_array()[trajectory.mask_array() == 1]
    others = sorted({int(found) for found in versions} - {version})
    if others:
        raise EngineMistrusted(
            f"{trajectory.episode}: tokens were sampled from version {', '.join(map(str, others))}, "
            f"but version {version} is evaluated",
            hint="something else gives these engines weights",
        )
    return len(versions)


def figures_of(rows: Sequence[SampleRow], ks: Sequence[int]) -> dict[str, Any]:
    """What the samples come to. Those without a usable verdict count nowhere, and are counted."""
    usable = [row for row in rows if Verdict(row.verdict).usable]
    counts: dict[str, tuple[int, int]] = {}
    rewards: dict[str, list[float]] = {}
    for row in usable:
        samples, passed = counts.get(row.task, (0, 0))
        counts[row.task] = samples + 1, passed + (row.verdict == Verdict.SUCCESS)
        rewards.setdefault(row.task, []).append(row.reward or 0.0)
    scores = [statistics.fmean(found) for found in rewards.values()]
    estimates = {str(k): estimate(counts, k) for k in ks}
    return {
        "pass_at_k": {k: found and asdict(found) for k, found in estimates.items()},
        "reward": statistics.fmean(scores) if scores else None,
        "num_tasks": len({row.task for row in rows}),
        "num_samples": len(rows),
        "num_unusable": len(rows) - len(usable),
        "num_tokens": sum(row.num_sampled for row in usable),
        "verdicts": Counter(row.verdict for row in rows),
    }


def _settings(job: EvaluationJob) -> JobConfig:
    """No engine is lent to a trainer here, and none is restarted for long."""
    config = job.config
    temperature = job.temperature or config.agent.temperature  # of greedy episodes it is not asked
    return replace(
        config,
        agent=replace(config.agent, temperature=temperature),
        inference=replace(config.inference, max_restarts=_RESTARTS),
        schedule=replace(config.schedule, swing="none"),
    )


class _NoBook:
    """Engines die with this process; there is nobody who would end them later."""

    def started(self, *, pid: int, start_ticks: int, role: str) -> None:
        return

    def ended(self, *, pid: int, start_ticks: int) -> None:
        return


class _NoObserver:
    def emit(self, event: Event) -> None:
        return


class _NoRecorder:
    def record_turn(self, record: TurnRecord) -> None:
        return
