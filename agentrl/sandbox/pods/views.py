"""What the watch knows of each pod, and waiting for it to change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from agentrl.kubernetes.client import Object
from agentrl.kubernetes.watch_state import Change, Kind
from agentrl.sandbox.death import Death
from agentrl.sandbox.pods.evidence import PodEnd, end_of, gone


class PodView:
    """One pod, by its name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.object: Object | None = None
        """As it was last seen; None before that."""
        self.is_gone = False
        self.is_released = False
        """Nobody counts it any more."""
        self._decreed: PodEnd | None = None
        self._changed = asyncio.Event()

    @property
    def node(self) -> str:
        """Where it runs; empty before it is scheduled."""
        return "" if self.object is None else self.object["spec"].get("nodeName") or ""

    @property
    def uid(self) -> str | None:
        return None if self.object is None else self.object["metadata"]["uid"]

    @property
    def end(self) -> PodEnd | None:
        """How it ended, as far as is known."""
        if self._decreed is not None:
            return self._decreed
        if self.is_gone:
            return PodEnd(Death.EVICTED, "deleted, not by this run") if self.object is None else gone(self.object)
        return None if self.object is None else end_of(self.object)

    def decree(self, end: PodEnd) -> None:
        """We end it: that, and not what the cluster says of it afterwards, is why."""
        self._decreed = self._decreed or end
        self._wake()

    def see(self, pod: Object, *, is_gone: bool = False) -> None:
        """This is how it is now, or was last."""
        if self.end is None or self.object is None:  # what is said while it goes is not why it goes
            self.object = pod
        self.is_gone = self.is_gone or is_gone
        self._wake()

    async def until(self, met: Callable[[PodView], bool], *, within_s: float | None) -> bool:
        """Wait until a condition is met, for ever with None; whether it is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not met(self):
                    await self._changed.wait()
        return met(self)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class PodViews:
    """Every pod that somebody here made, by name."""

    def __init__(self) -> None:
        self._views: dict[str, PodView] = {}

    def add(self, name: str) -> PodView:
        view = self._views[name] = PodView(name)
        return view

    def forget(self, name: str) -> None:
        self._views.pop(name, None)

    def end_all(self, end: PodEnd) -> None:
        """We end them all."""
        for view in self._views.values():
            view.decree(end)

    def tell(self, change: Change) -> None:
        """What the watch heard."""
        view = self._views.get(change.object["metadata"]["name"])
        if view is not None and view.uid in (None, change.object["metadata"]["uid"]):
            view.see(change.object, is_gone=change.kind is Kind.GONE)
