"""Kueue, as far as its jobs can tell: what has a queue's name starts suspended, and goes on when the queue is there."""

from __future__ import annotations

import asyncio

from ..errors import Object
from ..resources import JOB_SETS, JOBS, LOCAL_QUEUES, PODS, TRAIN_JOBS, Resource
from ..store import Change, Store, key_of
from .base import controller_of

QUEUE = "kueue.x-k8s.io/queue-name"
GATE = "kueue.x-k8s.io/admission"
SUSPENDABLE = (JOBS, JOB_SETS, TRAIN_JOBS)


def hold(resource: Resource, thing: Object) -> None:
    """What Kueue's webhooks do to a new object that names a queue: nothing of it may run yet."""
    if QUEUE not in (thing["metadata"].get("labels") or {}) or controller_of(thing) is not None:
        return
    if resource in SUSPENDABLE:
        thing["spec"]["suspend"] = True
    elif resource == PODS:
        thing["spec"].setdefault("schedulingGates", []).append({"name": GATE})


class Kueue:
    """Admits everything whose local queue exists. It counts no quota."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def see(self, change: Change) -> None:
        if change.type == "DELETED":
            return
        meta = change.thing["metadata"]
        if change.resource in (*SUSPENDABLE, PODS) and QUEUE in (meta.get("labels") or {}) and change.type == "ADDED":
            self._soon(change.resource, change.thing)
        elif change.resource == LOCAL_QUEUES and change.type == "ADDED":
            for resource in (*SUSPENDABLE, PODS):
                for thing in self._store.all(resource, meta["namespace"]):
                    if (thing["metadata"].get("labels") or {}).get(QUEUE) == meta["name"]:
                        self._soon(resource, thing)

    def _soon(self, resource: Resource, thing: Object) -> None:
        asyncio.get_running_loop().call_soon(self._admit, resource, thing)

    def _admit(self, resource: Resource, thing: Object) -> None:
        queue = thing["metadata"]["labels"][QUEUE]
        if self._store.find(LOCAL_QUEUES, thing["metadata"]["namespace"], queue) is None:
            return

        def release(stored: Object) -> None:
            if resource in SUSPENDABLE:
                stored["spec"]["suspend"] = False
                return
            stored["spec"]["schedulingGates"] = [
                one for one in stored["spec"].get("schedulingGates") or [] if one["name"] != GATE
            ]
            if not stored["spec"]["schedulingGates"]:
                del stored["spec"]["schedulingGates"]

        self._store.change(resource, *key_of(thing), release)
