"""A time limit that stands still while a sandbox is frozen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class ActiveTimer:
    """Calls back once `limit_s` of unfrozen time has passed since `start`."""

    def __init__(self, limit_s: float, callback: Callable[[], None]) -> None:
        self._remaining_s = limit_s
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None
        self._since = 0.0
        self.fired = False

    def start(self) -> None:
        """Begin, or go on."""
        if self._handle is None and not self.fired:
            loop = asyncio.get_running_loop()
            self._since = loop.time()
            self._handle = loop.call_later(self._remaining_s, self._fire)

    def stop(self) -> None:
        """Stand still, for good or until the next `start`."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
            self._remaining_s = max(0.0, self._remaining_s - (asyncio.get_running_loop().time() - self._since))

    def _fire(self) -> None:
        self._handle, self.fired = None, True
        self._callback()
