"""One watch: what is there, what changes, bookmarks, and the end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import msgspec

from . import selectors
from .errors import ApiError
from .resources import Resource
from .store import Change, Store


@dataclass(frozen=True)
class WatchOptions:
    """What the query of a watch says. ``version`` is empty where the watch begins with what is there."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""
    version: str = ""
    bookmarks: bool = False
    timeout_s: float | None = None
    initial_events: bool = False


def _line(type_: str, thing: bytes) -> bytes:
    return b'{"type":"' + type_.encode() + b'","object":' + thing + b"}\n"


class Watch:
    """The lines of one watch. Nothing is written for half a bookmark interval at most."""

    def __init__(self, store: Store, resource: Resource, options: WatchOptions, bookmark_s: float) -> None:
        self._store = store
        self._resource = resource
        self._options = options
        self._bookmark_s = bookmark_s
        labels, fields = selectors.labels(options.labels), selectors.fields(options.fields, resource)
        self._matches: selectors.Match = lambda thing: (
            (not options.namespace or thing["metadata"].get("namespace") == options.namespace)
            and labels(thing)
            and fields(thing)
        )
        self._queue: deque[Change] = deque()
        self._news = asyncio.Event()
        self._seen = 0

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """Events as JSON lines until the time is over."""
        stop = self._store.listen(self._hear)
        try:
            try:
                first = self._first()
            except ApiError as error:
                yield _line("ERROR", msgspec.json.encode(error.status))
                return
            yield b"".join(first)
            async for line in self._changes():
                yield line
        finally:
            stop()

    def _first(self) -> list[bytes]:
        options, lines = self._options, []
        self._seen = self._store.version
        if options.version in ("", "0") or options.initial_events:
            there = self._store.all(self._resource, options.namespace)
            lines = [_line("ADDED", msgspec.json.encode(thing)) for thing in there if self._matches(thing)]
            if options.initial_events and options.bookmarks:
                lines.append(self._bookmark({"k8s.io/initial-events-end": "true"}))
        else:
            for change in self._store.since(self._resource, int(options.version)):
                lines += self._event(change)
        return lines

    async def _changes(self) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        ends = None if self._options.timeout_s is None else loop.time() + self._options.timeout_s
        bookmark_at = loop.time() + self._bookmark_s
        while True:
            due = bookmark_at if ends is None else min(bookmark_at, ends)
            try:
                async with asyncio.timeout_at(due):
                    await self._news.wait()
            except TimeoutError:
                if ends is not None and loop.time() >= ends:
                    return
                bookmark_at = loop.time() + self._bookmark_s
                if self._options.bookmarks:
                    yield self._bookmark()
                continue
            self._news.clear()
            lines: list[bytes] = []
            while self._queue:
                change = self._queue.popleft()
                if change.version > self._seen:
                    lines += self._event(change)
            if lines:
                yield b"".join(lines)

    def _hear(self, change: Change) -> None:
        if change.resource == self._resource:
            self._queue.append(change)
            self._news.set()

    def _event(self, change: Change) -> list[bytes]:
        """What a change is to this watch: an object may come into its selection, or leave it."""
        now = change.type != "DELETED" and self._matches(change.thing)
        before = change.before is not None and self._matches(change.before)
        if now:
            return [_line("MODIFIED" if before else "ADDED", change.encoded)]
        return [_line("DELETED", change.encoded)] if before else []

    def _bookmark(self, annotations: dict[str, str] | None = None) -> bytes:
        meta: dict[str, object] = {"resourceVersion": str(self._store.version), "creationTimestamp": None}
        if annotations:
            meta["annotations"] = annotations
        thing = {"kind": self._resource.kind, "apiVersion": self._resource.api_version, "metadata": meta}
        if self._resource.plural == "pods":
            thing |= {"spec": {"containers": None}, "status": {}}
        return _line("BOOKMARK", msgspec.json.encode(thing))
