"""What a watch does next: a state machine. Events in, actions out; it knows neither sockets nor clocks.

List, then watch from the list's version. A watch that ends goes on from the last version that was seen (bookmarks keep
it fresh); one whose version the server has forgotten (410) lists again. Failures in a row are spread by ever longer
pauses. Now and then everything is listed anew (resync), in case something was missed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from agentrl.kubernetes.errors import Gone, KubernetesError
from agentrl.kubernetes.limits import pause_s

RESYNC_S = 600.0
"""A full list this often costs little and bounds how long a missed event can matter."""


@dataclass(frozen=True)
class List:
    """Ask for everything."""

    after_s: float = 0.0


@dataclass(frozen=True)
class Watch:
    """Ask for what changes from here."""

    resource_version: str
    after_s: float = 0.0


Action: TypeAlias = List | Watch


class Kind(Enum):
    """What became of an object."""

    CHANGED = "changed"
    GONE = "gone"


@dataclass(frozen=True)
class Change:
    """One object, as it is now or as it was last."""

    kind: Kind
    object: dict[str, Any]


@dataclass
class WatchState:
    """One watch, over its whole life. `objects` is the copy of what is there, by uid."""

    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    failures: int = 0
    """In a row."""
    listed_at: float | None = None
    """When the last whole list came; None before the first."""
    heard_at: float | None = None
    """When the server last said anything."""
    _version: str = ""

    def next(self, now: float, entropy: float) -> Action:
        """What to ask for."""
        after_s = pause_s(self.failures - 1, entropy) if self.failures else 0.0
        due = self.listed_at is None or now - self.listed_at >= RESYNC_S
        return List(after_s) if due or not self._version else Watch(self._version, after_s)

    def listed(self, items: list[dict[str, Any]], resource_version: str, now: float) -> list[Change]:
        """A whole list came. Returns what differs from what was known."""
        self.failures, self.listed_at, self.heard_at, self._version = 0, now, now, resource_version
        found = {item["metadata"]["uid"]: item for item in items}
        changes = [Change(Kind.GONE, item) for uid, item in self.objects.items() if uid not in found]
        changes += [
            Change(Kind.CHANGED, item)
            for uid, item in found.items()
            if _version(item) != _version(self.objects.get(uid))
        ]
        self.objects = found
        return changes

    def event(self, event: dict[str, Any], now: float) -> list[Change]:
        """One event of a watch came. Raises the error that it is, if it is one."""
        kind, item = event["type"], event["object"]
        self.heard_at = now
        if kind == "ERROR":
            raise _error(item)
        self.failures = 0
        self._version = item["metadata"]["resourceVersion"]
        if kind == "BOOKMARK":
            return []
        uid = item["metadata"]["uid"]
        if kind == "DELETED":
            known = self.objects.pop(uid, None)
            return [] if known is None else [Change(Kind.GONE, item)]
        self.objects[uid] = item
        return [Change(Kind.CHANGED, item)]

    def failed(self, error: KubernetesError) -> None:
        """The list or watch that was asked for failed, or broke off."""
        if isinstance(error, Gone):
            self._version = ""
            if self.failures == 0:  # as expected after a long silence: list at once, but not for ever
                self.failures = 1 if self.listed_at is None else 0
                self.listed_at = None
                return
        self.failures += 1


def _version(item: dict[str, Any] | None) -> str | None:
    return None if item is None else item["metadata"].get("resourceVersion")


def _error(status: dict[str, Any]) -> KubernetesError:
    message = f"watch: {status.get('message') or status.get('reason') or status}"
    if status.get("code") == 410 or status.get("reason") in ("Expired", "Gone"):
        return Gone(message, status=410, reason=str(status.get("reason", "")))
    return KubernetesError(message, status=status.get("code"), reason=str(status.get("reason", "")))
