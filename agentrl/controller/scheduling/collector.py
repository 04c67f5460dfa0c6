"""Keeps episodes acting and complete groups flowing into the ready pool.

Effects only: how many episodes may act is decided by `admission` from `progress`, which come first by `order`, what is
complete by `groups`, what enters a batch by `ready_pool`, who is not waited for by `stragglers`, when to give up by
`breaker`; this module carries it out and writes it down.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import asdict
from typing import Any

from agentrl.clock import monotonic
from agentrl.config.schema import JobConfig
from agentrl.controller.config import Stragglers
from agentrl.controller.fleet.fleet import Fleet
from agentrl.controller.scheduling.admission import LoadFactor, expected_peak, max_live_episodes, room
from agentrl.controller.scheduling.breaker import Breaker
from agentrl.controller.scheduling.groups import ClosedGroup, GroupBook, Launch, MemberOutcome
from agentrl.controller.scheduling.progress import Progress
from agentrl.controller.scheduling.ready_pool import ReadyPool, Selection
from agentrl.controller.scheduling.stragglers import Lagging, cut
from agentrl.controller.scheduling.task_order import task_index
from agentrl.controller.scheduling.upcoming import upcoming
from agentrl.errors import ProcessFailed, RunPaused
from agentrl.ledger.ledger import Ledger
from agentrl.observe.events import (
    EpisodeCancelled,
    EpisodeEnded,
    GroupClosed,
    LaunchingChanged,
    Observer,
    SandboxesUsed,
)
from agentrl.rollout.attempt import EpisodeSpec
from agentrl.rollout.episode import EpisodeResult, EpisodeRunner
from agentrl.rollout.verdict import Verdict
from agentrl.sandbox.warm_pool import WarmPool
from agentrl.tasks.task import Task

LOOK_S = 10.0
"""Between two looks at the engines' load and at stragglers."""


class Collector:
    """Use `run` as a task; `wait_complete` and `take` from the controller."""

    def __init__(
        self,
        config: JobConfig,
        *,
        tasks: tuple[Task, ...],
        book: GroupBook,
        pool: ReadyPool,
        progress: Progress,
        next_seq: int,
        fleet: Fleet,
        runner: EpisodeRunner,
        sandboxes: WarmPool,
        ledger: Ledger,
        observer: Observer,
    ) -> None:
        self._schedule = config.schedule
        self._members = config.algorithm.group_size + config.schedule.extra_members
        self._forks = config.sandbox.fork_groups
        self._warm_max = config.sandbox.warm_max
        self._tasks = {task.name: task for task in tasks}
        self._names = tuple(task.name for task in tasks)
        self._seed = config.seed
        self._max_live = max_live_episodes(config)
        self._load_factor = LoadFactor()
        self._limited = False
        """The KV budget keeps episodes from starting."""
        self._progress = progress
        self._book = book
        self._pool = pool
        self._next_seq = next_seq
        self._fleet = fleet
        self._runner = runner
        self._sandboxes = sandboxes
        self._ledger = ledger
        self._observer = observer
        self._breaker = Breaker(
            infra_share_limit=config.schedule.infra_share_limit,
            uncertain_share_limit=config.schedule.uncertain_share_limit,
            pause_s=config.schedule.infra_pause_s,
            max_pauses=config.schedule.infra_pauses,
        )
        self._step = 0
        self._launching = False
        self._wake = asyncio.Event()
        self._complete = asyncio.Event()
        self._live: dict[str, asyncio.Task[None]] = {}
        """By episode, until its sandbox is closed."""
        self._began: dict[str, float] = {}
        """When those were started."""
        self._running: dict[tuple[str, int], str] = {}
        """Episodes by group and member, until they have ended or were cancelled."""
        fleet.subscribe(self._wake.set)

    @property
    def num_live(self) -> int:
        return len(self._live)

    @property
    def num_ready(self) -> int:
        return len(self._pool)

    @property
    def may_launch(self) -> bool:
        """Whether anything more can be started for the batch that is being collected."""
        return self._launching and (self._book.has_pending() or self.num_openable > len(self._book))

    @property
    def complete(self) -> bool:
        """Whether a batch can be taken."""
        return self._complete.is_set()

    @property
    def num_openable(self) -> int:
        """Groups that may be open at once beside the ready ones."""
        return self._schedule.window_groups - len(self._pool)

    @property
    def oldest_ready_version(self) -> int | None:
        """Oldest policy version of any token in the ready groups."""
        return self._pool.oldest_version

    # --- for the controller

    async def run(self) -> None:
        """Launch whenever there is room, until cancelled.

        Raises RunPaused when the circuit breaker trips, ProcessFailed when the tasks teach nothing.
        """
        self._ledger.set_meta("launching", "null")  # whatever an earlier controller waited for
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_again(), name="look")
            while True:
                await self._wake.wait()
                self._wake.clear()
                self._launch(group)

    def collect_for(self, step: int) -> None:
        """Launch from now on, for the batch of `step`."""
        self._step = step
        self._launching = True
        self._refresh()

    def pause_launching(self) -> None:
        """Start nothing new; what acts goes on."""
        self._launching = False

    async def wait_complete(self) -> None:
        """Until a batch can be taken."""
        self._refresh()
        await self._complete.wait()

    def take(self) -> Selection:
        """The batch of the current step; only when complete."""
        selection = self._pool.take()
        self._report_sandboxes()
        self._refresh()
        return selection

    @property
    def load_factor(self) -> float:
        """By how much more, or less, than predicted the engines have turned out to hold."""
        return self._load_factor.value

    # --- launching

    def _refresh(self) -> None:
        """Look again at what is stale, complete, and launchable."""
        for stale in self._pool.drop_stale(self._step):
            self._drop(stale, f"stale: oldest version {stale.oldest_version} for step {self._step}")
        if self._batch_complete():
            self._complete.set()
        else:
            self._complete.clear()
        self._wake.set()

    def _batch_complete(self) -> bool:
        oldest = self._book.oldest_seq
        if not self._pool.complete or self._schedule.stragglers is not Stragglers.wait or oldest is None:
            return self._pool.complete
        return self._pool.last_of_batch < oldest

    def _launch(self, group: asyncio.TaskGroup) -> None:
        slots, allowed = self._room(), self._breaker.allowed(monotonic())
        slots = slots if allowed is None else min(slots, allowed)
        while self._launching and slots > 0:
            launches = self._book.launch(slots, self._progress.new)
            for launch in launches:
                self._start(launch, group)
            slots -= len(launches)
            if slots > 0 and not self._open_group():
                break
        self._expect(slots)

    def expect_first(self) -> None:
        """Before any engine serves: tell the warm pool what will be launched first."""
        self._expect(self._max_live - len(self._live))

    def _expect(self, slots: int) -> None:
        """Tell the warm pool what comes; `slots` episodes of it as soon as they are there."""
        last = self._step >= self._schedule.steps
        num_openable = max(self.num_openable - len(self._book), 0) + (0 if last else self._schedule.groups_per_step)
        pending = self._book.pending()
        coming = upcoming(
            [(task, 1) for task, _ in pending] if self._forks else pending,
            (self._task(seq) for seq in itertools.count(self._next_seq)),
            num_openable=num_openable,
            group_size=1 if self._forks else self._members,  # the others are forks of the first
            slots=slots,
            horizon=self._warm_max,
        )
        self._sandboxes.expect([(self._tasks[task].spec, count) for task, count in coming.tasks], due=coming.due)

    def _task(self, seq: int) -> str:
        """Name of the task of launch number `seq`."""
        return self._names[task_index(seq, num_tasks=len(self._names), seed=self._seed)]

    def _room(self) -> int:
        budget = self._schedule.kv_share * self._fleet.kv_capacity_tokens * self._load_factor.value
        used, remaining = self._progress.totals()
        slots = room(
            num_live=len(self._live),
            used=used,
            remaining=remaining,
            new=self._progress.new(),
            budget_tokens=budget,
            limit=self._max_live,
            floor=self._fleet.num_up,
        )
        self._limited = budget > 0 and len(self._live) + slots < self._max_live
        return slots

    async def _look_again(self) -> None:
        """What changes without an episode's end: the engines' load, and how long stragglers are expected to take."""
        while True:
            await asyncio.sleep(LOOK_S)
            if not self._fleet.lent:  # else many wait because engines are away, not because the prediction is wrong
                await self._look_at_load()
            if self._schedule.stragglers is Stragglers.cut:
                self._cut_stragglers()
            self._refresh()

    async def _look_at_load(self) -> None:
        num_waiting = await self._fleet.num_short_of_kv()
        budget = self._schedule.kv_share * self._fleet.kv_capacity_tokens
        self._load_factor.look(
            num_live=len(self._live),
            num_waiting=num_waiting,
            fill=expected_peak(*self._progress.totals()) / budget if budget else 0.0,
            limited=self._limited,
        )

    def _open_group(self) -> bool:
        """Open the next group in the seeded order if the window has room."""
        if len(self._book) + len(self._pool) >= self._schedule.window_groups:
            return False
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        task = self._task(seq)
        group = f"g{seq:06d}"
        self._ledger.open_group(group, seq=seq, task=task)
        self._book.open(group, seq=seq, task=task)
        return True

    def _start(self, launch: Launch, group: asyncio.TaskGroup) -> None:
        episode = f"{launch.group}.m{launch.member:03d}.a{launch.attempt:02d}"
        self._ledger.start_episode(
            episode,
            group=launch.group,
            member=launch.member,
            attempt=launch.attempt,
            version=self._fleet.weights.version,
        )
        spec = EpisodeSpec(episode=episode, group=launch.group, task=self._tasks[launch.task], seed=self._seed)
        self._progress.start(episode, launch.task)
        self._breaker.launched()
        self._began[episode] = monotonic()
        running = self._live[episode] = group.create_task(self._run_episode(spec, launch), name=episode)
        running.add_done_callback(lambda _: self._free(episode))
        self._running[launch.group, launch.member] = episode

    # --- ending

    def _free(self, episode: str) -> None:
        """Its slot; also of a task that was cancelled before it began."""
        self._live.pop(episode, None)
        self._began.pop(episode, None)
        self._wake.set()

    async def _run_episode(self, spec: EpisodeSpec, launch: Launch) -> None:
        try:
            result = await self._runner.run(spec)
        finally:
            del self._live[spec.episode]
        del self._running[launch.group, launch.member]
        self._record(result)
        self._judge(result)
        closed = self._book.end(launch.group, launch.member, _outcome(result))
        if closed is not None:
            self._close(closed)
        if problem := self._pool.barren():
            hint = (
                "the tasks are too easy or too hard for this model: take others, or schedule.drop_zero_variance=false"
            )
            raise ProcessFailed(problem, hint=hint)
        self._refresh()

    def _judge(self, result: EpisodeResult) -> None:
        """Pause launching, or go on. Raises RunPaused."""
        before = self._breaker.pause
        self._breaker.add(result.verdict, result.cause, began=self._began[result.spec.episode], now=monotonic())
        if tripped := self._breaker.tripped():
            hint = f"`agentrl episodes RUN --verdict {tripped.verdict}` lists them, `agentrl why EPISODE` tells why"
            raise RunPaused(tripped.problem, hint=hint)
        pause = self._breaker.pause
        if pause is before:
            return
        if pause is not None:
            asyncio.get_running_loop().call_later(pause.seconds, self._wake.set)
        event = LaunchingChanged(paused_s=pause.seconds if pause else None, reason=pause.problem if pause else "")
        self._ledger.set_meta("launching", json.dumps(asdict(event)))
        self._observer.emit(event)

    def _report_sandboxes(self) -> None:
        figures = self._sandboxes.figures()
        used = SandboxesUsed(
            **asdict(figures.counts),
            hit_rate=figures.hit_rate,
            waste=figures.waste,
            acquire_p50_s=figures.acquire_p50_s,
            acquire_p95_s=figures.acquire_p95_s,
            warm=figures.warm,
        )
        self._ledger.set_meta("sandboxes", json.dumps(asdict(used)))
        self._observer.emit(used)

    def _record(self, result: EpisodeResult) -> None:
        reward = result.trajectory.reward if result.trajectory else None
        self._progress.end(result.spec.episode, by_itself=result.verdict is not Verdict.INFRA_FAILURE)
        write_end(self._ledger, result)
        self._observer.emit(
            EpisodeEnded(
                episode=result.spec.episode,
                task=result.spec.task.name,
                verdict=result.verdict.value,
                cause=result.cause.value,
                reward=reward,
                num_turns=result.num_turns,
                num_tokens=result.num_tokens,
                live=len(self._live),
            )
        )

    def _close(self, closed: ClosedGroup, *, cause: str = "surplus") -> None:
        """`cause`: why members that still run are cancelled."""
        reason = closed.reason or self._pool.add(closed)
        if reason is not None:
            self._drop(closed, reason)
        else:
            self._ledger.close_group(closed.group, "ready")
            self._emit_closed(closed, None)
        for member in closed.surplus:
            self._cancel(self._running.pop((closed.group, member)), closed.task, cause)

    def _cancel(self, episode: str, task: str, cause: str) -> None:
        """End an episode that nobody needs; its sandbox is closed by its own task."""
        reached = self._progress.end(episode, by_itself=False)
        self._ledger.cancel_episode(episode, cause=cause, num_turns=reached.num_turns, num_tokens=reached.num_tokens)
        self._breaker.withdrawn(self._began[episode])
        self._live[episode].cancel()
        self._observer.emit(
            EpisodeCancelled(
                episode=episode,
                task=task,
                cause=cause,
                num_turns=reached.num_turns,
                num_tokens=reached.num_tokens,
                live=len(self._live),
            )
        )

    def _cut_stragglers(self) -> None:
        for group, running in self._book.lagging().items():
            usable = self._book.outcomes(group)
            lagging = Lagging(
                num_usable=len(usable),
                ended_s=[outcome.active_s for outcome in usable],
                remaining_s=[self._progress.remaining_s(self._running[group, member]) for member in running],
            )
            if cut(lagging, min_usable=self._schedule.min_usable, factor=self._schedule.straggler_factor):
                self._close(self._book.cut(group), cause="straggler")

    def _drop(self, closed: ClosedGroup, reason: str) -> None:
        self._ledger.close_group(closed.group, "dropped", reason=reason)
        self._emit_closed(closed, reason)

    def _emit_closed(self, closed: ClosedGroup, reason: str | None) -> None:
        self._observer.emit(
            GroupClosed(
                group=closed.group, task=closed.task, ready=reason is None, reason=reason, num_ready=len(self._pool)
            )
        )


def _outcome(result: EpisodeResult) -> MemberOutcome:
    trajectory = result.trajectory
    return MemberOutcome(
        verdict=result.verdict,
        reward=trajectory.reward if trajectory else None,
        oldest_version=trajectory.oldest_version if trajectory else None,
        num_turns=result.num_turns,
        num_tokens=result.num_tokens,
        active_s=result.active_s,
    )


def write_end(ledger: Ledger, result: EpisodeResult) -> None:
    """An episode's verdict into the ledger."""
    ledger.end_episode(
        result.spec.episode,
        verdict=result.verdict.value,
        cause=result.cause.value,
        num_turns=result.num_turns,
        num_tokens=result.num_tokens,
        active_s=result.active_s,
        evidence=evidence_json(result),
        trajectory=result.trajectory,
    )


def evidence_json(result: EpisodeResult) -> dict[str, Any]:
    """Evidence without what is empty."""
    return {key: value for key, value in asdict(result.evidence).items() if value is not None}
