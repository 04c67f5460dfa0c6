"""`WarmPool`: a provider over a provider, whose sandboxes are up before they are asked for.

Effects only: what to start, close and give up is decided by `warm_plan`, from what `warm_demand` measures. Invariants:
requests are served in the order in which they came; a sandbox is handed out at most once; it is asked whether it
answers when it is, and only then its lifetime begins; one that nobody has any more is closed.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random

from agentrl.clock import monotonic
from agentrl.errors import ImageError, SandboxError
from agentrl.sandbox.config import SandboxConfig
from agentrl.sandbox.provider import Capabilities, Image, Sandbox, SandboxProvider, SandboxSpec, Snapshot, unheard
from agentrl.sandbox.warm_demand import Failures, LaunchRate, StartTimes, level
from agentrl.sandbox.warm_figures import Acquisitions, Counts, PoolFigures
from agentrl.sandbox.warm_plan import Fork, Kind, Stock, plan

MAX_TRIES = 3
"""Starts of one kind that fail in a row, or sandboxes that are dead when handed out, until the request fails."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Warm:
    """A sandbox that is up, and nobody's."""

    sandbox: Sandbox
    since: float


@dataclass(eq=False)
class _Start:
    """A start in flight."""

    kind: Kind
    began: float | None = None
    """None while it waits for a place."""
    task: asyncio.Task[None] | None = None
    overdue: bool = False
    """As it was counted."""
    abandoned: bool = False


class WarmPool:
    """Implements `SandboxProvider` over another one. `run` as a task; nothing is started while it does not run."""

    def __init__(
        self,
        provider: SandboxProvider,
        config: SandboxConfig,
        *,
        entropy: Random,
        on_start: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`entropy` spreads the tries after failures; `on_start` is told how many seconds a start took."""
        self._on_start = on_start
        self._provider = provider
        self._config = config
        self._entropy = entropy
        self._queue: Sequence[tuple[Kind, int]] = ()
        self._due = 0
        self._line: dict[asyncio.Future[Sandbox], Kind] = {}
        """Requests that wait, in the order in which they came."""
        self._warm: dict[Kind, deque[_Warm]] = {}
        self._starts: list[_Start] = []
        """Those that were decided first stand first."""
        self._unwanted: list[Sandbox] = []
        """Those whose owners went while they were handed out, to be closed."""
        self._num_closing = 0
        """Those that still take the place that they make."""
        self._abandoned: dict[Kind, int] = {}
        """By kind, since one of it came up."""
        self._rate = LaunchRate()
        self._times = StartTimes()
        self._failures = Failures()
        self._counts = Counts()
        self._acquisitions = Acquisitions()
        self._wake = asyncio.Event()
        self._closed = False

    # --- as a provider

    @property
    def capabilities(self) -> Capabilities:
        return self._provider.capabilities

    @property
    def room(self) -> int:
        """Warm ones make room for others."""
        return self._provider.room + self._num_warm

    async def prepare(self, image: Image) -> None:
        """See `SandboxProvider.prepare`."""
        await self._provider.prepare(image)

    async def create(
        self, spec: SandboxSpec, *, snapshot: Snapshot | None = None, on_begin: Callable[[], None] = unheard
    ) -> Sandbox:
        """Hand one out, at once if one is up. Waits for a place as long as that takes: in turn, and without a limit.

        Forks of a snapshot wait in the same line. They start in no time and nobody knows of them before, so none is
        warm, and the figures are without them.
        """
        self._check()
        kind, began = _kind(spec), monotonic()
        if snapshot is not None:
            fork, _ = await self._acquire(Fork(kind, snapshot), spec.owner)
            on_begin()
            return fork
        self._rate.add(began)
        sandbox, hit = await self._acquire(kind, spec.owner)
        on_begin()
        self._counts.hits += hit
        self._counts.misses += not hit
        self._acquisitions.add(monotonic() - began)
        self._wake.set()
        return sandbox

    async def close(self) -> None:
        """Close every sandbox that is still open, handed out or not."""
        self._closed = True
        self._counts.unused += self._num_warm
        self._warm.clear()
        for kind in set(self._line.values()):
            self._fail_all(kind, SandboxError("the sandbox provider is closed"))
        for start in self._starts:
            if start.task is not None:
                start.task.cancel()
        self._wake.set()
        await self._provider.close()

    # --- for the controller

    def expect(self, queue: Sequence[tuple[SandboxSpec, int]], *, due: int) -> None:
        """Tell what will be asked for, in this order, each with how many. Replaces what was told before.

        `due`: of them, how many will be asked for at once, as soon as what holds them up is over.
        """
        self._queue = [(_kind(spec), count) for spec, count in queue]
        self._due = due
        self._wake.set()

    def figures(self) -> PoolFigures:
        """What it came to so far."""
        return self._acquisitions.figures(self._counts, warm=self._num_warm)

    async def run(self) -> None:
        """Start and close what is decided, until cancelled or closed. Raises only what is a bug."""
        async with asyncio.TaskGroup() as group:
            while not self._closed:
                self._wake.clear()
                self._carry_out(group)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._next_look_s()):
                        await self._wake.wait()

    # --- handing out

    async def _acquire(self, kind: Kind, owner: str | None) -> tuple[Sandbox, bool]:
        """One that answers; and whether it was up already."""
        hit, problem = True, None
        for _ in range(MAX_TRIES):
            sandbox = self._take(kind)
            if sandbox is None:
                sandbox, hit = await self._wait(kind), False
            problem = await self._hand_out(sandbox, owner)
            if problem is None:
                return sandbox, hit
        raise SandboxError(f"{MAX_TRIES} sandboxes in a row did not answer when they were handed out: {problem}")

    def _take(self, kind: Kind) -> Sandbox | None:
        """A warm one, the oldest."""
        warm = self._warm.get(kind)
        if not warm:
            return None
        taken = warm.popleft().sandbox
        if not warm:
            del self._warm[kind]
        return taken

    async def _wait(self, kind: Kind) -> Sandbox:
        """The next one of its kind that comes up."""
        future: asyncio.Future[Sandbox] = asyncio.get_running_loop().create_future()
        self._line[future] = kind
        self._wake.set()
        try:
            return await future
        except BaseException:
            self._stop_waiting(kind, future)
            raise

    def _stop_waiting(self, kind: Kind, future: asyncio.Future[Sandbox]) -> None:
        """Forget a request that ends without a sandbox. One that it was given in its last moment is nobody's still."""
        if future.done() and not future.cancelled() and future.exception() is None:
            self._came(kind, future.result())
        self._line.pop(future, None)
        self._wake.set()

    def _waiter(self, kind: Kind) -> asyncio.Future[Sandbox] | None:
        """The request that waits longest, no longer counted as waiting."""
        waiting = (future for future, other in self._line.items() if other == kind and not future.done())
        future = next(waiting, None)
        if future is not None:
            del self._line[future]
        return future

    async def _hand_out(self, sandbox: Sandbox, owner: str | None) -> SandboxError | None:
        """Make it the owner's. Returns why not, if it does not answer."""
        try:
            await sandbox.assign(owner)
        except SandboxError as error:
            self._counts.dead += 1
            self._counts.unused += 1
            logger.warning("a sandbox was dead when it was handed out: %s", error)
            await _close(sandbox)
            return error
        except BaseException:
            self._unwanted.append(sandbox)
            self._wake.set()
            raise
        return None

    # --- carrying out

    def _carry_out(self, group: asyncio.TaskGroup) -> None:
        """Look at everything, decide, and begin what was decided."""
        now = monotonic()
        self._expire(now, group)
        while self._unwanted:
            self._close(self._unwanted.pop(), group)
        stocks = self._stocks(now)
        decided = plan(
            self._queue,
            stocks,
            requests=tuple(self._line.values()),
            level=level(self._rate.per_s(now), self._times.lead_s, self._due),
            warm_max=self._config.warm_max,
            room=self._provider.room + self._num_closing - sum(start.began is None for start in self._starts),
            starts=self._config.start_concurrency - len(self._starts),
        )
        self._note_overdue(now)
        for kind in decided.close:
            self._close_warm(kind, group)
        for kind in decided.abandon:
            self._abandon(kind, now)
        for kind in decided.start:
            start = _Start(kind)
            self._starts.append(start)
            start.task = group.create_task(self._start(start), name=f"sandbox start {now:.3f}")

    def _note_overdue(self, now: float) -> None:
        for start in self._starts:
            if not start.overdue and now >= self._overdue_at(start):
                start.overdue = True
                self._counts.hedged += 1

    def _stocks(self, now: float) -> dict[Kind, Stock]:
        waiting = Counter(self._line.values())
        starts: dict[Kind, list[_Start]] = {kind: [] for kind in waiting}
        for start in self._starts:
            if not start.abandoned:
                starts.setdefault(start.kind, []).append(start)
        kinds = dict.fromkeys([*starts, *self._warm, *(kind for kind, _ in self._queue)])
        return {kind: self._stock(kind, starts.get(kind, []), waiting[kind], now) for kind in kinds}

    def _stock(self, kind: Kind, starts: list[_Start], waiting: int, now: float) -> Stock:
        overdue = sum(now >= self._overdue_at(start) for start in starts)
        return Stock(
            waiting=waiting,
            warm=len(self._warm.get(kind, ())),
            coming=len(starts) - overdue,
            overdue=overdue,
            blocked=self._failures.ready_at(kind) > now,
        )

    async def _start(self, start: _Start) -> None:
        """One start, to its end."""
        kind = start.kind
        try:
            sandbox, took_s = await self._up(start)
        except (SandboxError, ImageError) as error:
            self._failed(kind, error)
        else:
            self._failures.forget(kind)
            self._abandoned.pop(kind, None)
            if not isinstance(kind, Fork):
                self._times.add(took_s)
                self._on_start(took_s)
                self._counts.started += 1
            self._came(kind, sandbox)
        finally:
            self._starts.remove(start)
            self._wake.set()

    async def _up(self, start: _Start) -> tuple[Sandbox, float]:
        """A sandbox, and the seconds that its start took. Only from where it began it has a limit."""
        limit_s = 2 * self._config.start_timeout_s
        spec, snapshot = (start.kind.spec, start.kind.snapshot) if isinstance(start.kind, Fork) else (start.kind, None)
        try:
            async with asyncio.timeout(None) as timeout:

                def begin() -> None:
                    start.began = monotonic()
                    timeout.reschedule(start.began + limit_s)
                    self._wake.set()

                sandbox = await self._provider.create(spec, snapshot=snapshot, on_begin=begin)
        except TimeoutError as error:
            raise SandboxError(f"a sandbox did not come up within {limit_s:g} s of its start") from error
        assert start.began is not None, "a provider says when it begins"
        return sandbox, monotonic() - start.began

    def _came(self, kind: Kind, sandbox: Sandbox) -> None:
        """One is up: whoever waits longest gets it."""
        if future := self._waiter(kind):
            future.set_result(sandbox)
        else:
            self._warm.setdefault(kind, deque()).append(_Warm(sandbox, monotonic()))

    def _failed(self, kind: Kind, error: SandboxError | ImageError) -> None:
        """Try again later; but an image that cannot be made, or that never starts, is told to who waits.

        A fork is not tried again: its snapshot may be gone, and who waits for it has another way to begin.
        """
        if self._closed:
            return
        self._counts.failed += 1
        if isinstance(kind, Fork):
            self._abandoned.pop(kind, None)
            if future := self._waiter(kind):
                future.set_exception(error)
            return
        failures = self._failures.add(kind, monotonic(), self._entropy.random())
        logger.warning("a sandbox did not start, %d in a row of its kind: %s", failures, error)
        if isinstance(error, ImageError) or failures >= MAX_TRIES:
            self._fail_all(kind, error)

    def _fail_all(self, kind: Kind, error: SandboxError | ImageError) -> None:
        while future := self._waiter(kind):
            future.set_exception(error)

    def _abandon(self, kind: Kind, now: float) -> None:
        """Give up the start that is the longest in flight."""
        for start in self._starts:
            if start.kind == kind and not start.abandoned and now >= self._overdue_at(start):
                assert start.task is not None, "it is set when the start is listed"
                start.abandoned = True
                start.task.cancel()
                self._counts.abandoned += 1
                self._abandoned[kind] = self._abandoned.get(kind, 0) + 1
                return

    def _expire(self, now: float, group: asyncio.TaskGroup) -> None:
        """Close what was warm for too long: a fork at once, because only who asked for it could want it."""
        for kind, warm in list(self._warm.items()):
            idle_s = 0.0 if isinstance(kind, Fork) else self._config.warm_idle_s
            while warm and now >= warm[0].since + idle_s:
                self._close_warm(kind, group)

    def _close_warm(self, kind: Kind, group: asyncio.TaskGroup) -> None:
        if sandbox := self._take(kind):
            self._counts.unused += not isinstance(kind, Fork)
            self._close(sandbox, group)

    def _close(self, sandbox: Sandbox, group: asyncio.TaskGroup) -> None:
        self._num_closing += 1
        group.create_task(self._closing(sandbox))

    async def _closing(self, sandbox: Sandbox) -> None:
        try:
            await _close(sandbox)
        finally:
            self._num_closing -= 1
            self._wake.set()

    def _overdue_at(self, start: _Start) -> float:
        if start.began is None:
            return math.inf
        return start.began + self._times.patience_s(self._abandoned.get(start.kind, 0))

    def _next_look_s(self) -> float | None:
        """Seconds until time alone changes what is to be done; None: it does not."""
        now = monotonic()
        times = [self._overdue_at(start) for start in self._starts]
        times += [warm[0].since + self._config.warm_idle_s for warm in self._warm.values()]
        times += [self._failures.ready_at(kind) for kind in [*self._line.values(), *(kind for kind, _ in self._queue)]]
        ahead = [time - now for time in times if now < time < math.inf]
        return min(ahead, default=None)

    @property
    def _num_warm(self) -> int:
        return sum(map(len, self._warm.values()))

    def _check(self) -> None:
        if self._closed:
            raise SandboxError("the sandbox provider is closed")


def _kind(spec: SandboxSpec) -> SandboxSpec:
    return spec if spec.owner is None else replace(spec, owner=None)


async def _close(sandbox: Sandbox) -> None:
    """Close one that nobody has. What is left of it goes when its provider closes."""
    try:
        await sandbox.close()
    except SandboxError as error:
        logger.warning("%s", error)
