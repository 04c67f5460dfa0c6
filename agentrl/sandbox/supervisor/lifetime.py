"""How long a sandbox may still live: a countdown that stands still while the sandbox is frozen."""

from __future__ import annotations

import time
from collections.abc import Callable

from agentrl.sandbox.supervisor.reactor import Reactor, Timer


class Lifetime:
    """Calls back once when `seconds` of unfrozen time have passed since the start, or since the last `restart`."""

    def __init__(self, reactor: Reactor, seconds: float, on_over: Callable[[], None]) -> None:
        self._reactor = reactor
        self._seconds = seconds
        self._on_over = on_over
        self._left_s = seconds
        self._timer: Timer | None = None
        self.run()

    def run(self) -> None:
        """Count down, from where it stood still."""
        if self._timer is None:
            self._timer = self._reactor.call_later(self._left_s, self._on_over)

    def stand_still(self) -> None:
        """Until `run`."""
        if self._timer is not None:
            self._left_s = max(self._timer.when - time.monotonic(), 0.0)
            self.end()

    def restart(self) -> None:
        """The sandbox was handed out: only from now on it counts."""
        self.end()
        self._left_s = self._seconds
        self.run()

    def end(self) -> None:
        """No more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
