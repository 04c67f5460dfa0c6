"""One command of a sandbox on its way to its end: its clock, and what ends the waiting for it."""

from __future__ import annotations

import asyncio

from agentrl.sandbox.pods.active_timer import ActiveTimer
from agentrl.sandbox.pods.calls import Command
from agentrl.sandbox.pods.views import PodView
from agentrl.sandbox.pods.words import Lost, Outcome, Unending

KILL_GRACE_S = 10.0
"""How long a killed command may take to die before its result is given up."""
NEWS_S = 3.0
"""How long the watch is given to say why a pod answers no more: kubelets tell within a second or two. The same for the
last words of a command in a pod that has ended."""


class InFlight:
    """It may be given up before it has begun, too."""

    def __init__(self, view: PodView, timeout_s: float) -> None:
        self._view = view
        self._timer = ActiveTimer(timeout_s, self._kill)
        self._command: Command | None = None
        self._overdue = asyncio.Event()
        self._killing: asyncio.Task[None] | None = None
        self.given_up = False
        """Nobody wants its result any more."""

    @property
    def timed_out(self) -> bool:
        """Whether its time was over before it was."""
        return self._timer.fired

    def freeze(self) -> None:
        """Its clock stands still."""
        self._timer.stop()

    def thaw(self) -> None:
        if self._command is not None:
            self._timer.start()

    def give_up(self) -> None:
        """Kill it; its end follows."""
        self.given_up = True
        self._kill()

    async def drop(self) -> None:
        """Hang up."""
        if self._command is not None:
            await self._command.drop()

    async def to_end(self, command: Command, *, frozen: bool) -> Outcome:
        """Wait for it, as long as its time, its killing and its pod allow."""
        self._command = command
        if self.given_up:
            self._kill()
        elif not frozen:
            self._timer.start()
        ending = asyncio.create_task(command.end())
        others = {
            asyncio.create_task(self._view.until(lambda view: view.end is not None, within_s=None)),
            asyncio.create_task(self._overdue.wait()),
        }
        try:
            await asyncio.wait({ending, *others}, return_when=asyncio.FIRST_COMPLETED)
            if not ending.done() and not self._overdue.is_set():
                await asyncio.wait({ending}, timeout=NEWS_S)
            if ending.done():
                return ending.result()
            await command.drop()
            return Unending() if self._overdue.is_set() else Lost(True, "its pod ended")
        finally:
            for task in (ending, *others):
                task.cancel()
            self._timer.stop()

    def _kill(self) -> None:
        if self._command is not None and self._killing is None:
            self._killing = asyncio.create_task(self._command.kill())
            asyncio.get_running_loop().call_later(KILL_GRACE_S, self._overdue.set)
