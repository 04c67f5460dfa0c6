"""Events, as the components of a cluster write them; the same one again counts up."""

from __future__ import annotations

from .errors import Object, new_uid
from .resources import EVENTS, NAMESPACES
from .store import Store, now_text


class Recorder:
    """Writes events about objects."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[tuple[str, str, str, str], tuple[str, str]] = {}

    def say(
        self,
        about: Object,
        type_: str,
        reason: str,
        message: str,
        *,
        component: str = "kubelet",
        host: str = "",
        field: str = "",
    ) -> None:
        """Record an event about an object. ``field`` tells which container, as ``spec.containers{name}``."""
        meta = about["metadata"]
        namespace = meta.get("namespace", "") or "default"
        there = self._store.find(NAMESPACES, "", namespace)
        if there is None or there["metadata"].get("deletionTimestamp"):
            return
        same = (meta["uid"], reason, message, field)
        if (known := self._known.get(same)) and self._store.find(EVENTS, *known):

            def again(event: Object) -> None:
                event["count"] += 1
                event["lastTimestamp"] = now_text()

            self._store.change(EVENTS, *known, again)
            return
        name = f"{meta['name']}.{new_uid().replace('-', '')[:16]}"
        involved = {
            "kind": about["kind"],
            "name": meta["name"],
            "uid": meta["uid"],
            "apiVersion": about["apiVersion"],
            "resourceVersion": meta["resourceVersion"],
        }
        if meta.get("namespace"):
            involved["namespace"] = meta["namespace"]
        if field:
            involved["fieldPath"] = field
        source = {"component": component, **({"host": host} if host else {})}
        self._store.create(
            EVENTS,
            {
                "kind": "Event",
                "apiVersion": "v1",
                "metadata": {"name": name, "namespace": namespace},
                "involvedObject": involved,
                "reason": reason,
                "message": message,
                "source": source,
                "firstTimestamp": now_text(),
                "lastTimestamp": now_text(),
                "count": 1,
                "type": type_,
                "eventTime": None,
                "reportingComponent": component,
                "reportingInstance": host,
            },
        )
        self._known[same] = (namespace, name)
