"""Objects by resource and name, the version counter, and the history that watches read.

Stored objects are never changed in place: every write puts a new dictionary, so a reader may keep what it has. All
calls are made on the server's own loop; nothing here waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

import msgspec

from . import errors
from .errors import Object, copied, new_uid
from .resources import Resource

Key = tuple[str, str]
"""Namespace (empty where there is none) and name."""


def now_text(moment: datetime | None = None) -> str:
    """A moment as the API writes it, whole seconds of UTC."""
    return (moment or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def key_of(thing: Object) -> Key:
    return thing["metadata"].get("namespace", ""), thing["metadata"]["name"]


@dataclass(frozen=True)
class Change:
    """One write. ``before`` is None for an object that is new, ``type`` says ADDED, MODIFIED or DELETED."""

    version: int
    type: str
    resource: Resource
    thing: Object
    before: Object | None

    @cached_property
    def encoded(self) -> bytes:
        """The object as JSON, made once for all who watch."""
        return msgspec.json.encode(self.thing)


Listener = Callable[[Change], None]


class Store:
    """Every object of the cluster."""

    def __init__(self, history: int = 10_000) -> None:
        self.version = 100
        self._objects: dict[Resource, dict[Key, Object]] = {}
        self._history: dict[Resource, deque[Change]] = {}
        self._oldest: dict[Resource, int] = {}
        self._history_length = history
        self._listeners: list[Listener] = []

    # What is read

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        found = self.find(resource, namespace, name)
        if found is None:
            raise errors.not_found(resource, name)
        return found

    def find(self, resource: Resource, namespace: str, name: str) -> Object | None:
        return self._objects.get(resource, {}).get((namespace, name))

    def all(self, resource: Resource, namespace: str = "") -> list[Object]:
        """Objects in the order of their names, of all namespaces if none is given."""
        objects = self._objects.get(resource, {})
        return [objects[key] for key in sorted(objects) if not namespace or key[0] == namespace]

    def everything(self) -> Iterator[tuple[Resource, Object]]:
        for resource, objects in list(self._objects.items()):
            for thing in list(objects.values()):
                yield resource, thing

    def since(self, resource: Resource, version: int) -> list[Change]:
        """Changes after a version.

        Raises:
            ApiError: 410, the history does not reach back so far.
        """
        oldest = self._oldest.get(resource, 0)
        if version < oldest:
            raise errors.too_old(version, oldest)
        found: list[Change] = []
        for change in reversed(self._history.get(resource, ())):
            if change.version <= version:
                break
            found.append(change)
        return found[::-1]

    # What is written

    def create(self, resource: Resource, thing: Object) -> Object:
        key = key_of(thing)
        objects = self._objects.setdefault(resource, {})
        if key in objects:
            raise errors.already_exists(resource, key[1])
        thing = dict(thing)
        thing["metadata"] = {
            **thing["metadata"],
            "uid": thing["metadata"].get("uid") or new_uid(),
            "creationTimestamp": now_text(),
        }
        return self._put(resource, "ADDED", thing, None)

    def update(self, resource: Resource, thing: Object) -> Object:
        """Replace an object; nothing is written when nothing differs, as in the real one."""
        before = self.get(resource, *key_of(thing))
        if thing == before:
            return before
        return self._put(resource, "MODIFIED", dict(thing), before)

    def change(self, resource: Resource, namespace: str, name: str, edit: Callable[[Object], None]) -> Object | None:
        """Edit a copy of an object and store it: for controllers. None where it is gone."""
        before = self.find(resource, namespace, name)
        if before is None:
            return None
        thing = copied(before)
        edit(thing)
        return self.update(resource, thing)

    def remove(self, resource: Resource, namespace: str, name: str) -> Object:
        before = self.get(resource, namespace, name)
        return self._put(resource, "DELETED", dict(before), before)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Have a function called after every change. The answer stops it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def forget_history(self) -> None:
        """Compact: whoever watches from an earlier version is told 410."""
        for resource in list(self._history):
            self._history[resource].clear()
            self._oldest[resource] = self.version

    def _put(self, resource: Resource, type_: str, thing: Object, before: Object | None) -> Object:
        self.version += 1
        thing["metadata"] = {**thing["metadata"], "resourceVersion": str(self.version)}
        thing.setdefault("apiVersion", resource.api_version)
        thing.setdefault("kind", resource.kind)
        objects = self._objects.setdefault(resource, {})
        if type_ == "DELETED":
            del objects[key_of(thing)]
        else:
            objects[key_of(thing)] = thing
        change = Change(self.version, type_, resource, thing, before)
        history = self._history.setdefault(resource, deque())
        history.append(change)
        if len(history) > self._history_length:
            self._oldest[resource] = history.popleft().version
        for listener in list(self._listeners):
            listener(change)
        return thing
