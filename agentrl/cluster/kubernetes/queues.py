"""Kueue: an object with a queue's name starts suspended, and Kueue lets it go when there is quota for it."""

from __future__ import annotations

from agentrl.cluster.kubernetes.site import Object
from agentrl.kubernetes.merge import merged

_QUEUE = "kueue.x-k8s.io/queue-name"
_SUSPENDED = ("Job", "JobSet", "TrainJob")
"""Kinds with spec.suspend; Kueue holds the pods of the others back by scheduling gates."""


def queued(obj: Object, queue: str | None) -> Object:
    """The object in that queue; unchanged if there is none."""
    if queue is None:
        return obj
    made = merged(obj, {"metadata": {"labels": {_QUEUE: queue}}})
    return merged(made, {"spec": {"suspend": True}}) if obj["kind"] in _SUSPENDED else made
