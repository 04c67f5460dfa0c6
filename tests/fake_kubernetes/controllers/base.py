"""What controllers share: objects whose state is to be reached again are queued once, and served on the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, ClassVar

from ..access import ADMIN
from ..api import Api, DeleteOptions, Options
from ..errors import ApiError, Object, copied
from ..events import Recorder
from ..resources import Resource, Target
from ..store import Change, Key, key_of, now_text

RETRY_S = 0.5


class Controller:
    """Brings objects of one kind from what they are to what they should be, whenever something about them changes."""

    resource: ClassVar[Resource]
    name: ClassVar[str]
    owned: ClassVar[tuple[Resource, ...]] = ()
    """Kinds whose changes concern their controlling owner."""

    def __init__(self, api: Api, recorder: Recorder) -> None:
        self.api = api
        self.store = api.store
        self.recorder = recorder
        self._due: dict[Key, asyncio.Handle] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._closed = False

    def see(self, change: Change) -> None:
        for key in self.keys(change):
            self.soon(key)

    def keys(self, change: Change) -> Iterator[Key]:
        """The objects that a change concerns."""
        if change.resource == self.resource:
            yield key_of(change.thing)
        elif change.resource in self.owned:
            owner = controller_of(change.thing)
            if owner is not None and owner["kind"] == self.resource.kind:
                yield change.thing["metadata"].get("namespace", ""), owner["name"]

    def reconcile(self, thing: Object) -> None:
        """Do what is to be done about an object. Called again when something changes."""
        raise NotImplementedError

    def close(self) -> None:
        self._closed = True
        for handle in (*self._due.values(), *self._timers.values()):
            handle.cancel()

    def soon(self, key: Key) -> None:
        if key not in self._due and not self._closed:
            self._due[key] = asyncio.get_running_loop().call_soon(self._serve, key)

    def later(self, key: Key, seconds: float) -> None:
        """Look at an object again when time has passed; the latest call counts."""
        if key in self._timers:
            self._timers[key].cancel()
        self._timers[key] = asyncio.get_running_loop().call_later(max(seconds, 0.0), self._after, key)

    def _after(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.soon(key)

    def _serve(self, key: Key) -> None:
        self._due.pop(key, None)
        thing = self.store.find(self.resource, *key)
        if thing is None or self._closed:
            return
        try:
            self.reconcile(thing)
        except ApiError as error:
            self.recorder.say(thing, "Warning", "FailedCreate", f"Error creating: {error}", component=self.name)
            self.later(key, RETRY_S)

    # What they do to objects

    def make(self, resource: Resource, owner: Object, body: Object) -> Object:
        """Create an object that an owner controls.

        Raises:
            ApiError: as for anyone.
        """
        body = copied(body)
        meta = body.setdefault("metadata", {})
        meta["ownerReferences"] = [reference(owner)]
        namespace = owner["metadata"]["namespace"]
        return self.api.create(ADMIN, Target(resource, namespace), body, Options(validation="Ignore")).thing

    def children(self, resource: Resource, owner: Object) -> list[Object]:
        """The objects of a kind that an owner controls."""
        uid = owner["metadata"]["uid"]
        return [
            thing
            for thing in self.store.all(resource, owner["metadata"]["namespace"])
            if (ref := controller_of(thing)) is not None and ref["uid"] == uid
        ]

    def remove(self, resource: Resource, thing: Object, *, propagation: str = "Background") -> None:
        """Delete an object, if it is still there and not on its way."""
        if self.store.find(resource, *key_of(thing)) is None or thing["metadata"].get("deletionTimestamp"):
            return
        self.api.delete(resource, *key_of(thing), DeleteOptions(propagation=propagation))

    def say_status(self, thing: Object, status: Object) -> None:
        """Write a status, if it says something new."""

        def write(stored: Object) -> None:
            stored["status"] = status

        self.store.change(self.resource, *key_of(thing), write)


def controller_of(thing: Object) -> Object | None:
    """The reference to the owner that controls an object."""
    references: list[Object] = thing["metadata"].get("ownerReferences") or []
    return next((ref for ref in references if ref.get("controller")), None)


def reference(owner: Object) -> Object:
    """A reference to an owner that controls."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def is_ready(pod: Object) -> bool:
    return condition(pod, "Ready") == "True" and not pod["metadata"].get("deletionTimestamp")


def is_over(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def condition(thing: Object, kind: str) -> str | None:
    """The value of a condition."""
    found = find_condition(thing, kind)
    return None if found is None else str(found["status"])


def find_condition(thing: Object, kind: str) -> Object | None:
    conditions: list[Any] = (thing.get("status") or {}).get("conditions") or []
    return next((one for one in conditions if one["type"] == kind), None)


def put_condition(status: Object, generation: int, kind: str, said: tuple[str, str, str]) -> None:
    """Write one condition of a custom resource (value, reason, message); its time changes with its value only."""
    value, reason, message = said
    conditions = status.setdefault("conditions", [])
    old = next((one for one in conditions if one["type"] == kind), None)
    made = {
        "type": kind,
        "status": value,
        "reason": reason,
        "message": message,
        "observedGeneration": generation,
        "lastTransitionTime": old["lastTransitionTime"] if old and old["status"] == value else now_text(),
    }
    status["conditions"] = [one for one in conditions if one["type"] != kind] + [made]
