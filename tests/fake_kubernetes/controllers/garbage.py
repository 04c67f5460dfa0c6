"""The garbage collector: what is owned goes with its owner, in the order that the deletion asked for."""

from __future__ import annotations

import asyncio

from ..api import Api, DeleteOptions
from ..errors import ApiError, Object
from ..resources import Resource
from ..store import Change, Key, key_of

Dependent = tuple[Resource, Key]


class GarbageCollector:
    """Knows who owns whom by uid, from the changes it saw."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._store = api.store
        self._alive: dict[str, Dependent] = {}
        self._owned: dict[str, dict[str, Dependent]] = {}
        self._dirty: set[str] = set()
        self._due = False
        self._closed = False

    def close(self) -> None:
        self._closed = True

    def see(self, change: Change) -> None:
        meta = change.thing["metadata"]
        uid = meta["uid"]
        before = {ref["uid"] for ref in ((change.before or {}).get("metadata") or {}).get("ownerReferences") or []}
        now = {ref["uid"] for ref in meta.get("ownerReferences") or []}
        if change.type == "DELETED":
            self._alive.pop(uid, None)
            for owner in now | before:
                self._owned.get(owner, {}).pop(uid, None)
                self._dirty.add(owner)
            self._dirty.add(uid)
        else:
            self._alive[uid] = (change.resource, key_of(change.thing))
            for owner in before - now:
                self._owned.get(owner, {}).pop(uid, None)
                self._dirty.add(owner)
            for owner in now:
                self._owned.setdefault(owner, {})[uid] = self._alive[uid]
                if owner not in self._alive:
                    self._dirty.add(owner)
            if meta.get("deletionTimestamp") and meta.get("finalizers"):
                self._dirty.add(uid)
        if self._dirty and not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._collect)

    def _collect(self) -> None:
        self._due = False
        dirty, self._dirty = self._dirty, set()
        if self._closed:
            return
        for uid in dirty:
            if uid in self._alive:
                self._finish(uid)
            else:
                for resource, key in list(self._owned.pop(uid, {}).values()):
                    self._lose_owner(resource, key)

    def _finish(self, uid: str) -> None:
        """Go on with a deletion that waits for dependents."""
        resource, key = self._alive[uid]
        thing = self._store.find(resource, *key)
        if thing is None or not thing["metadata"].get("deletionTimestamp"):
            return
        finalizers = thing["metadata"].get("finalizers") or []
        dependents = list(self._owned.get(uid, {}).values())
        if "orphan" in finalizers:
            for owned, owned_key in dependents:
                self._store.change(owned, *owned_key, lambda one: _disown(one, uid))
            self._drop_finalizer(resource, key, "orphan")
        elif "foregroundDeletion" in finalizers:
            blocking = [one for one in dependents if self._blocks(one, uid)]
            for owned, owned_key in dependents:
                found = self._store.find(owned, *owned_key)
                if found is not None and not found["metadata"].get("deletionTimestamp"):
                    self._delete(owned, owned_key, "Foreground")
            if not [one for one in blocking if self._store.find(one[0], *one[1])]:
                self._drop_finalizer(resource, key, "foregroundDeletion")

    def _blocks(self, dependent: Dependent, uid: str) -> bool:
        found = self._store.find(dependent[0], *dependent[1])
        references = ((found or {}).get("metadata") or {}).get("ownerReferences") or []
        return any(ref["uid"] == uid and ref.get("blockOwnerDeletion") for ref in references)

    def _lose_owner(self, resource: Resource, key: Key) -> None:
        thing = self._store.find(resource, *key)
        if thing is None:
            return
        references = thing["metadata"].get("ownerReferences") or []
        gone = [ref for ref in references if ref["uid"] not in self._alive]
        if not gone:
            return
        if len(gone) < len(references):
            for ref in gone:
                self._store.change(resource, *key, lambda one, uid=ref["uid"]: _disown(one, uid))  # type: ignore[misc]
        elif not thing["metadata"].get("deletionTimestamp"):
            self._delete(resource, key, "Background")

    def _delete(self, resource: Resource, key: Key, propagation: str) -> None:
        try:
            self._api.delete(resource, *key, DeleteOptions(propagation=propagation))
        except ApiError as error:
            if error.code != 404:
                raise

    def _drop_finalizer(self, resource: Resource, key: Key, name: str) -> None:
        def drop(thing: Object) -> None:
            left = [one for one in thing["metadata"].get("finalizers") or [] if one != name]
            thing["metadata"]["finalizers"] = left
            if not left:
                del thing["metadata"]["finalizers"]

        changed = self._store.change(resource, *key, drop)
        if changed is not None:
            self._api.finish_deletion(resource, changed)


def _disown(thing: Object, uid: str) -> None:
    left = [ref for ref in thing["metadata"].get("ownerReferences") or [] if ref["uid"] != uid]
    thing["metadata"]["ownerReferences"] = left
    if not left:
        del thing["metadata"]["ownerReferences"]
