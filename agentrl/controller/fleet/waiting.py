"""Episodes that wait for room on an engine, the oldest first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext

from agentrl.clock import monotonic
from agentrl.controller.fleet.places import Places
from agentrl.rollout.hold import Hold


class Waiting:
    """Who has no place yet. Clock and sandbox of an episode stand still while it waits."""

    def __init__(self, places: Places, gate: asyncio.Event) -> None:
        """`gate`: set while requests may be sent."""
        self.crowded = False
        """From the first engine that leaves for the trainer until the last one is back."""
        self.only: Callable[[str], bool] | None = None
        """Episodes that may sample; None: all."""
        self._places = places
        self._gate = gate
        self._waiting: dict[str, tuple[int, asyncio.Event]] = {}
        """Episodes that found no room, with the length of their contexts."""
        self._first: dict[str, int] = {}
        """Version under which each live episode first sampled."""
        self._next_look: asyncio.TimerHandle | None = None

    @property
    def num(self) -> int:
        return len(self._waiting)

    @property
    def num_allowed(self) -> int:
        """Those that wait for room alone."""
        return sum(map(self._may_sample, self._waiting))

    def chosen(self, episode: str) -> bool:
        """Whether it samples while others may not."""
        return self.only is not None and self.only(episode)

    def _may_sample(self, episode: str) -> bool:
        return self.only is None or self.only(episode)

    async def place(self, episode: str, num_tokens: int, hold: Hold | None) -> str | None:
        """The episode's engine. Waits while generation is suspended, and for room.

        None if no engine is in service, and none is lent.
        """
        while True:
            await self._gate.wait()
            if self._may_sample(episode) and (self._places.has(episode) or self._nothing_to_wait_for):
                return self._places.place(episode, num_tokens, monotonic())
            ready = asyncio.Event()
            self._waiting[episode] = num_tokens, ready
            self.grant()
            try:
                if not ready.is_set():
                    async with hold.waiting() if hold else nullcontext():
                        await ready.wait()
            finally:
                del self._waiting[episode]

    def age(self, episode: str, version: int) -> int:
        """Versions since the one under which the episode first sampled: what was carried over goes first."""
        return version - self._first.setdefault(episode, version)

    def forget(self, episode: str) -> None:
        """The episode is over."""
        self._first.pop(episode, None)

    def grant(self) -> None:
        """Places for those who wait, the oldest first, as long as there is room."""
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None
        if not self._gate.is_set():
            return
        now = monotonic()
        for episode in filter(self._may_sample, sorted(self._waiting)):
            num_tokens, ready = self._waiting[episode]
            if not self._nothing_to_wait_for and self._places.place(episode, num_tokens, now) is None:
                if (when := self._places.next_room(now)) is not None:
                    self._next_look = asyncio.get_running_loop().call_at(when, self.grant)
                return
            ready.set()

    @property
    def _nothing_to_wait_for(self) -> bool:
        return not self.crowded and not self._places.engines
