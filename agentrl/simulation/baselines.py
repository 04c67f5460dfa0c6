"""What to compare with: one batch, collected without this project's controller, over the same edges.

`naive` runs every episode by itself, spreads requests round-robin over the engines, starts sandboxes when they are
needed, runs lost episodes again from the start, and waits for all. `barrier` also waits twice: until all sandboxes are
up before the first turn, and until the last agent is done before the first verification.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import Protocol

from agentrl.clock import monotonic
from agentrl.inference.engine import Engine, Generation, SamplingParams
from agentrl.rollout.active_time import ActiveTime
from agentrl.rollout.attempt import EpisodeSpec
from agentrl.rollout.edges import TurnRecord
from agentrl.rollout.episode import EpisodeResult, EpisodeRunner
from agentrl.rollout.hold import Hold
from agentrl.sandbox.config import SandboxConfig
from agentrl.sandbox.provider import SandboxSpec, Snapshot, unheard
from agentrl.simulation.bound import bound
from agentrl.simulation.engine import SimulatedEngine
from agentrl.simulation.figures import Figures, Sample, drawn, figures
from agentrl.simulation.life import World
from agentrl.simulation.run import Scenario, tasks
from agentrl.simulation.sandbox import SimulatedProvider, SimulatedSandbox
from agentrl.simulation.tongue import SimulatedChat, SimulatedModel, parse_episode
from agentrl.tasks.task import Task


class Baseline(StrEnum):
    """See the module."""

    NAIVE = "naive"
    BARRIER = "barrier"


class Book(Protocol):
    """Told of every attempt."""

    def started(self, spec: EpisodeSpec, member: int, attempt: int) -> None: ...

    def ended(self, result: EpisodeResult) -> None: ...


async def collect_all(
    runner: EpisodeRunner, tasks: Sequence[Task], *, groups: Sequence[int], group_size: int, seed: int, book: Book
) -> list[EpisodeResult]:
    """Start every member of the groups at once, run the lost ones again from the start, and wait for all.

    Returns their last attempts, by group and member. Group k has the k-th task, again from the first after the last.
    """

    async def run_member(group: int, member: int) -> EpisodeResult:
        name = f"g{group:06d}"
        for attempt in itertools.count():
            spec = EpisodeSpec(
                episode=f"{name}.m{member:03d}.a{attempt:02d}", group=name, task=tasks[group % len(tasks)], seed=seed
            )
            book.started(spec, member, attempt)
            result = await runner.run(spec)
            book.ended(result)
            if result.verdict.usable:
                return result
        raise AssertionError("attempts do not end")

    async with asyncio.TaskGroup() as running:
        results = [
            running.create_task(run_member(group, member), name=f"g{group}.m{member}")
            for group in groups
            for member in range(group_size)
        ]
    return [result.result() for result in results]


async def run_baseline(baseline: Baseline, scenario: Scenario) -> Figures:
    """Collect one batch. Inside `simulate` only."""
    workload, hardware, config = scenario.workload, scenario.hardware, scenario.config
    world = World(workload, seed=config.seed, hygiene=scenario.hygiene)
    model = SimulatedModel(world)
    engines = [SimulatedEngine(f"engine-{index}", hardware.engine, model) for index in range(hardware.engines)]
    members = [(group, member) for group in range(workload.groups) for member in range(workload.group_size)]
    provider = _provider(baseline, world, config.sandbox, num_members=len(members))
    runner = EpisodeRunner(
        agent=config.agent,
        chat=SimulatedChat(),
        sampler=RoundRobin(engines),
        provider=provider,
        recorder=NoRecords(),
        active_time=ActiveTime(),
    )
    verdicts = Verdicts()
    results = await collect_all(
        runner,
        tasks(workload.prompt_tokens),
        groups=range(workload.groups),
        group_size=workload.group_size,
        seed=config.seed,
        book=verdicts,
    )
    return figures(
        batches_s=[monotonic()],
        trained=[_trained(result, provider) for result in results],
        launched=[drawn(world, *who, 0) for who in members],
        engines=[engine.stats for engine in engines],
        engine_s=len(engines) * monotonic(),
        verdicts=verdicts.counts,
        lost=0,
        bound_s=bound(
            [world.life(*parse_episode(result.spec.episode)) for result in results],
            workload,
            hardware,
            sandboxes=min(len(members), hardware.sandboxes),
            warm=False,
        ).collecting_s,
    )


class RoundRobin:
    """A `Sampler` that gives every request to the next engine."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._next = itertools.cycle(engines)

    async def sample(
        self, episode: str, rid: str, ids: list[int], params: SamplingParams, hold: Hold | None = None
    ) -> Generation:
        return await next(self._next).generate(rid, ids, params)

    def forget(self, episode: str) -> None:
        return


class Verdicts:
    """A `Book` that counts verdicts."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def started(self, spec: EpisodeSpec, member: int, attempt: int) -> None:
        return

    def ended(self, result: EpisodeResult) -> None:
        self.counts[result.verdict.value] += 1


class NoRecords:
    """A `Recorder` without a ledger."""

    def record_turn(self, record: TurnRecord) -> None:
        return


class Barrier:
    """Opens for all when so many different members have come; a member that comes again is not counted again."""

    def __init__(self, num_members: int) -> None:
        self._missing = num_members
        self._seen: set[tuple[int, int]] = set()
        self._open = asyncio.Event()

    async def wait(self, owner: str) -> None:
        who = parse_episode(owner)[:2]
        if who not in self._seen:
            self._seen.add(who)
            self._missing -= 1
        if self._missing == 0:
            self._open.set()
        await self._open.wait()


class BarrierProvider(SimulatedProvider):
    """Hands out sandboxes when all are up, and lets them be graded when all agents are done."""

    def __init__(self, world: World, *, starts_at_once: int, start_timeout_s: float, num_members: int) -> None:
        super().__init__(world, starts_at_once=starts_at_once, start_timeout_s=start_timeout_s)
        self._up, self._done = Barrier(num_members), Barrier(num_members)

    async def create(
        self, spec: SandboxSpec, *, snapshot: Snapshot | None = None, on_begin: Callable[[], None] = unheard
    ) -> SimulatedSandbox:
        sandbox = await super().create(spec, snapshot=snapshot, on_begin=on_begin)
        await self._up.wait(_owner(spec))
        return sandbox

    def _make(self, sandbox_id: str, owner: str | None) -> SimulatedSandbox:
        assert owner is not None, "every sandbox of a baseline is an episode's"
        return BarrierSandbox(sandbox_id, owner, self._world, self._closed_one, partial(self._done.wait, owner))


class BarrierSandbox(SimulatedSandbox):
    """Grading begins with the end of what the agent left running: there it waits for the others."""

    def __init__(
        self,
        sandbox_id: str,
        owner: str,
        world: World,
        on_close: Callable[[SimulatedSandbox, str], None],
        until_all_done: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(sandbox_id, owner, world, on_close)
        self._until_all_done = until_all_done

    async def kill_all(self) -> int:
        await self._until_all_done()
        return await super().kill_all()


def _owner(spec: SandboxSpec) -> str:
    assert spec.owner is not None, "every simulated sandbox is an episode's"
    return spec.owner


def _provider(baseline: Baseline, world: World, config: SandboxConfig, *, num_members: int) -> SimulatedProvider:
    starts_at_once, start_timeout_s = config.start_concurrency, config.start_timeout_s
    if baseline is Baseline.NAIVE:
        return SimulatedProvider(world, starts_at_once=starts_at_once, start_timeout_s=start_timeout_s)
    return BarrierProvider(
        world, starts_at_once=starts_at_once, start_timeout_s=start_timeout_s, num_members=num_members
    )


def _trained(result: EpisodeResult, provider: SimulatedProvider) -> Sample:
    infrastructure = result.spec.episode in provider.lost
    return Sample(turns=result.num_turns, tokens=result.num_tokens, infrastructure=infrastructure)
