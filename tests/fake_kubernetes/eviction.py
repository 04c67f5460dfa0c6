"""``pods/eviction``: deletion that a disruption budget may refuse."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from aiohttp import web

from . import selectors
from .access import User
from .api import Api, DeleteOptions
from .errors import ApiError, Object
from .pod_status import set_condition
from .resources import DISRUPTION_BUDGETS, PODS, Target


@dataclass
class EvictionHandler:
    """Answers eviction requests."""

    api: Api

    async def __call__(self, request: web.Request, user: User, target: Target) -> web.StreamResponse:
        body = msgspec.json.decode(await request.read() or b"{}")
        store, namespace, name = self.api.store, target.namespace, target.name
        pod = store.get(PODS, namespace, name)
        self._ask_budgets(pod)
        grace = (body.get("deleteOptions") or {}).get("gracePeriodSeconds")

        def mark(thing: Object) -> None:
            set_condition(thing, "DisruptionTarget", "True", "EvictionByEvictionAPI", "Eviction API: evicting")

        if request.query.get("dryRun") != "All":
            store.change(PODS, namespace, name, mark)
            self.api.delete(PODS, namespace, name, DeleteOptions(grace_s=grace))
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
        return web.Response(body=msgspec.json.encode(status), status=201, content_type="application/json")

    def _ask_budgets(self, pod: Object) -> None:
        for budget in self.api.store.all(DISRUPTION_BUDGETS, pod["metadata"]["namespace"]):
            matches = selectors.of_spec(budget["spec"].get("selector"))
            if not matches(pod):
                continue
            pods = [one for one in self.api.store.all(PODS, pod["metadata"]["namespace"]) if matches(one)]
            healthy = sum(_is_ready(one) for one in pods)
            least = budget["spec"].get("minAvailable")
            most_away = budget["spec"].get("maxUnavailable")
            allowed = healthy - int(least) if least is not None else int(most_away or 0) - (len(pods) - healthy)
            if allowed < 1:
                name = budget["metadata"]["name"]
                raise ApiError(
                    429,
                    "TooManyRequests",
                    "Cannot evict pod as it would violate the pod's disruption budget.",
                    details={
                        "causes": [
                            {
                                "reason": "DisruptionBudget",
                                "message": f"The disruption budget {name} needs {healthy - allowed} healthy pods and "
                                f"has {healthy} currently",
                            }
                        ]
                    },
                )


def _is_ready(pod: Object) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions") or [])
