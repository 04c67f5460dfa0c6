"""An asyncio event loop whose clock jumps: hours pass in milliseconds, and the same seed gives the same run.

Nothing ever waits. When no callback is ready, the clock moves to the next timer; when there is no timer either, every
task waits for something that cannot happen, and the loop says so at once. Callbacks that are ready together run in a
seeded random order, because a real loop promises none between tasks. What virtual time cannot cover (sockets,
subprocesses, threads) raises.

Every task belongs to a node, a word for one process of the real system. `kill` is kill -9: no task of the node runs
again, not even a `finally`.
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
import math
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from functools import partial
from random import Random
from typing import Any, NoReturn, TypeVar

from agentrl.clock import EPOCH_S
from agentrl.errors import AgentrlError

T = TypeVar("T")

START_S = 1_600_000_000.0
"""What the wall clock says at the start of a simulation: always the same, so that records are too."""

_NODE: ContextVar[str] = ContextVar("node", default="main")
HORIZON_S = 30 * 86_400.0
"""Virtual time after which a simulation is taken to run for ever."""
_MAX_CLOSES = 100
"""Attempts at ending one dead coroutine: one for every `await` in its `finally` blocks."""

_ABSENT = {
    "run_in_executor": "threads",
    "call_soon_threadsafe": "threads",
    "create_connection": "sockets",
    "create_server": "sockets",
    "create_unix_connection": "sockets",
    "create_unix_server": "sockets",
    "create_datagram_endpoint": "sockets",
    "add_signal_handler": "signals",
    "subprocess_exec": "subprocesses",
    "subprocess_shell": "subprocesses",
}
"""What raises, by the loop's method."""


class Deadlock(AgentrlError, RuntimeError):
    """Every task waits, and nothing is scheduled that could wake one."""


class Overrun(AgentrlError, TimeoutError):
    """The simulation did not end by its horizon."""


class Task(asyncio.Task[Any]):
    """A task that knows its node. Its hash is its number, so that sets of tasks have the same order in every run."""

    def __init__(self, coro: Any, *, loop: VirtualLoop, context: Context, number: int) -> None:
        self._number = number
        self.node = context.get(_NODE, "main")
        super().__init__(coro, loop=loop, context=context)

    def __hash__(self) -> int:
        return self._number

    @property
    def where(self) -> str:
        """Its name and the line at which it waits."""
        frame = inner_frame(self.get_coro())
        return f"{self.get_name()} ({frame.f_code.co_qualname}:{frame.f_lineno})" if frame else self.get_name()


def inner_frame(coro: Any) -> Any:
    """The frame of the innermost coroutine that `coro` awaits."""
    frame = None
    while coro is not None and getattr(coro, "cr_frame", None) is not None:
        frame, coro = coro.cr_frame, coro.cr_await
    return frame


class VirtualLoop(asyncio.BaseEventLoop):
    """Use through `simulate`."""

    # Of BaseEventLoop, unknown to type checkers.
    _ready: deque[Any]
    _scheduled: list[Any]
    _timer_cancelled_count: int
    _stopping: bool

    def __init__(self, seed: int, horizon_s: float) -> None:
        super().__init__()
        self.set_debug(False)
        self._now = 0.0
        self._horizon_s = horizon_s
        self._random = Random(f"loop/{seed}")
        self._num_tasks = 0
        self._dead: set[str] = set()
        self._graveyard: list[Task] = []
        self._callback_error: BaseException | None = None
        self.num_rounds = 0
        """Rounds of callbacks so far. Where nothing takes time, this counts what the clock cannot tell apart."""
        self._at_round: dict[int, Callable[[], None]] = {}
        self._selector = self
        """BaseEventLoop asks its selector to wait: here the clock moves instead."""
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._on_error)
        for name, what in _ABSENT.items():
            setattr(self, name, partial(_refuse, what))

    def time(self) -> float:
        """Seconds since the start of the simulation."""
        return self._now

    def call_at_round(self, number: int, callback: Callable[[], None]) -> None:
        """Run `callback` between two rounds, before round `number`: also in the middle of one instant."""
        self._at_round[number] = callback

    # --- nodes

    def kill(self, node: str) -> None:
        """kill -9: from now on nothing of the node runs. A node that calls this for itself ends at its next await."""
        if node in self._dead:
            return
        self._dead.add(node)
        for task in asyncio.all_tasks(self):
            assert isinstance(task, Task)
            if task.node == node:
                # Referenced for ever: a collected coroutine would run its `finally` blocks.
                self._graveyard.append(task)
        for handle in (*self._ready, *self._scheduled):
            if self._is_dead(handle):
                handle.cancel()

    def _is_dead(self, handle: Any) -> bool:
        return bool(self._dead) and handle._context.get(_NODE, "main") in self._dead

    # --- called by BaseEventLoop

    def select(self, timeout: float | None) -> list[Any]:
        """Between two rounds of callbacks: move the clock if nothing is ready, and shuffle what is."""
        if self._callback_error is not None:
            raise self._callback_error
        self.num_rounds += 1
        if (callback := self._at_round.pop(self.num_rounds, None)) is not None:
            callback()
        if self._dead:
            # What the living did may wake the dead.
            for handle in self._ready:
                if self._is_dead(handle):
                    handle.cancel()
        if not self._ready and not self._stopping:
            self._advance()
        if len(self._ready) > 1:
            handles = list(self._ready)
            self._random.shuffle(handles)
            self._ready.clear()
            self._ready.extend(handles)
        return []

    def _advance(self) -> None:
        """Jump to the next timer, and make what is due then ready, so that it is shuffled too."""
        due = self._take_timer()
        if due is None:
            raise Deadlock(f"every task waits at {self._now:g} s: {'; '.join(self._waiting()) or 'no task is left'}")
        self._now = due._when
        if self._now > self._horizon_s:
            raise Overrun(f"not over after {self._horizon_s:g} s of virtual time: {'; '.join(self._waiting())}")
        while due is not None:
            self._ready.append(due)
            due = self._take_timer(until=self._now)

    def _take_timer(self, until: float = math.inf) -> Any:
        """The next timer that is due by `until` and still counts, or None."""
        while self._scheduled and self._scheduled[0]._when <= until:
            handle = heapq.heappop(self._scheduled)
            handle._scheduled = False
            if handle._cancelled:
                self._timer_cancelled_count -= 1
            elif not self._is_dead(handle):
                return handle
        return None

    def _waiting(self) -> list[str]:
        tasks = [task for task in asyncio.all_tasks(self) if isinstance(task, Task) and task.node not in self._dead]
        return sorted(task.where for task in tasks)

    def _process_events(self, event_list: list[Any]) -> None:
        return

    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, context: Context | None = None) -> Task:
        self._num_tasks += 1
        return Task(coro, loop=self, context=context or copy_context(), number=self._num_tasks)

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An error in a callback ends the simulation; one that nobody fetched from a task is the tasks' affair."""
        if "handle" in context:
            self._callback_error = context["exception"]

    # --- the end

    def bury(self) -> None:
        """End all coroutines that never finished, the killed ones included. Call when nothing is looked at any more.

        Their `finally` blocks run now, outside the loop, and what goes wrong in them is nobody's business.
        """
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            for task in {*self._graveyard, *asyncio.all_tasks(self)}:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _close(task.get_coro())
            self._graveyard.clear()
        finally:
            sys.unraisablehook = hook


def simulate(main: Coroutine[Any, Any, T], *, seed: int, horizon_s: float = HORIZON_S) -> T:
    """Run `main` to its end in virtual time and return its result. Equal seeds give equal runs.

    What is still running when `main` ends is ended without being asked. Raises what `main` raises; Deadlock; Overrun
    after `horizon_s` of virtual time.
    """
    loop = VirtualLoop(seed, horizon_s)
    context = copy_context()
    context.run(EPOCH_S.set, START_S)
    try:
        return context.run(loop.run_until_complete, main)
    finally:
        loop.bury()
        loop.close()


def spawn(node: str, coro: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
    """Start a task on a node; what it starts belongs to the node too."""
    return asyncio.get_running_loop().create_task(coro, name=name, context=node_context(node))


def node_context(node: str) -> Context:
    """A context for callbacks that belong to `node`. Raises ValueError if the node was killed: dead names stay dead."""
    if node in running_loop()._dead:
        raise ValueError(f"node {node!r} was killed; start it again under another name")
    context = copy_context()
    context.run(_NODE.set, node)
    return context


def kill(node: str) -> None:
    """kill -9: from now on nothing of the node runs. A node that kills itself ends when it next gives way."""
    running_loop().kill(node)


def running_loop() -> VirtualLoop:
    """The loop of the simulation that runs."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop), "only inside simulate()"
    return loop


def _close(coro: Any) -> None:
    for _ in range(_MAX_CLOSES):
        if inspect.getcoroutinestate(coro) == inspect.CORO_CLOSED:
            return
        try:
            coro.close()
        except (Exception, BaseExceptionGroup, asyncio.CancelledError):
            # It was dead before: nobody waits for what its last words say.
            continue


def _refuse(what: str, *args: Any, **kwargs: Any) -> NoReturn:
    raise RuntimeError(f"there are no {what} in virtual time")
