"""A readiness loop with timers. Importing asyncio instead would make every fork of the supervisor 4 times dearer."""

from __future__ import annotations

import heapq
import os
import selectors
import time
from collections.abc import Callable

Callback = Callable[[], None]


class Timer:
    """A callback that is due at `when` (monotonic seconds) unless cancelled."""

    def __init__(self, when: float, callback: Callback) -> None:
        self.when = when
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        self.callback = None

    def __lt__(self, other: Timer) -> bool:
        return self.when < other.when


class Reactor:
    """Calls back when descriptors are ready and when timers are due. One callback per descriptor and direction."""

    def __init__(self) -> None:
        self._selector = selectors.EpollSelector()
        self._timers: list[Timer] = []
        self._running = False

    def on_readable(self, fd: int, callback: Callback) -> None:
        self._selector.register(fd, selectors.EVENT_READ, callback)

    def on_writable(self, fd: int, callback: Callback) -> None:
        """Only for descriptors that are not also watched for reading."""
        self._selector.register(fd, selectors.EVENT_WRITE, callback)

    def forget(self, fd: int) -> None:
        """Stop watching `fd`, watched or not. Call before closing it."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def forget_and_close(self, fd: int) -> None:
        self.forget(fd)
        os.close(fd)

    def call_later(self, delay_s: float, callback: Callback) -> Timer:
        timer = Timer(time.monotonic() + delay_s, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def stop(self) -> None:
        self._running = False

    def run(self) -> None:
        """Dispatch until `stop` is called."""
        self._running = True
        while self._running:
            for key, _ in self._selector.select(self._timeout_s()):
                if self._selector.get_map().get(key.fd) is key:  # an earlier callback may have dropped it
                    key.data()
            self._run_due_timers()

    def _timeout_s(self) -> float | None:
        while self._timers and self._timers[0].callback is None:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0].when - time.monotonic()) if self._timers else None

    def _run_due_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0].when <= now:
            callback = heapq.heappop(self._timers).callback
            if callback is not None:
                callback()
