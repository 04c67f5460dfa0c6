"""Ends a run in which nothing finishes any more."""

from __future__ import annotations

import asyncio

from agentrl.errors import RunStalled
from agentrl.observe.events import Event, Phase, Warned


class Watchdog:
    """An observer for which every event but a warning is progress."""

    def __init__(self, *, stall_timeout_s: float) -> None:
        self._stall_timeout_s = stall_timeout_s
        self._progress = asyncio.Event()
        self._doing = "starting"

    def emit(self, event: Event) -> None:
        if isinstance(event, Warned):
            return
        self._progress.set()
        if isinstance(event, Phase):
            self._doing = f"{event.phase} {event.detail}".strip()

    async def watch(self) -> None:
        """Never returns. Raises RunStalled."""
        try:
            while True:
                async with asyncio.timeout(self._stall_timeout_s):
                    await self._progress.wait()
                self._progress.clear()
        except TimeoutError:
            raise RunStalled(
                f"nothing happened for {self._stall_timeout_s:g} s while {self._doing}",
                hint="look at the logs of engines and trainer, then `agentrl resume`",
            ) from None
