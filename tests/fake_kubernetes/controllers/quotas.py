"""The quota controller: how much of each quota is used."""

from __future__ import annotations

from collections.abc import Iterator

from ..admission import Admission, shown
from ..api import Api
from ..errors import Object
from ..events import Recorder
from ..resources import EVENTS, QUOTAS
from ..store import Change, Key, key_of
from .base import Controller


class QuotaController(Controller):
    """Writes the status of quotas."""

    resource = QUOTAS
    name = "resourcequota-controller"

    def __init__(self, api: Api, recorder: Recorder, admission: Admission) -> None:
        super().__init__(api, recorder)
        self._admission = admission

    def keys(self, change: Change) -> Iterator[Key]:
        namespace = change.thing["metadata"].get("namespace")
        if namespace and change.resource != EVENTS:
            for quota in self.store.all(QUOTAS, namespace):
                yield key_of(quota)

    def reconcile(self, thing: Object) -> None:
        hard = thing["spec"].get("hard") or {}
        used = {what: shown(what, amount) for what, amount in self._admission.used(thing).items()}
        self.say_status(thing, {"hard": hard, "used": used})
