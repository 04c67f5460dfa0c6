"""The subresource ``scale``."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from aiohttp import web

from .access import User
from .api import Api, Options
from .errors import Object
from .patch import MERGE_PATCH, patched
from .resources import Target


@dataclass
class ScaleHandler:
    """Reads and writes the number of replicas of whatever has them."""

    api: Api

    async def __call__(self, request: web.Request, user: User, target: Target) -> web.StreamResponse:
        thing = self.api.store.get(target.resource, target.namespace, target.name)
        if request.method in ("PUT", "PATCH"):
            body = msgspec.json.decode(await request.read())
            kind = request.content_type if request.method == "PATCH" else MERGE_PATCH
            scale = patched(_scale(thing), body, kind, strategic=True)
            change = {"spec": {"replicas": scale["spec"].get("replicas", 0)}}
            whole = Target(target.resource, target.namespace, target.name)
            thing = self.api.patch(user, whole, change, MERGE_PATCH, Options()).thing
        return web.Response(body=msgspec.json.encode(_scale(thing)), content_type="application/json")


def _scale(thing: Object) -> Object:
    meta = {key: thing["metadata"][key] for key in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")}
    status = thing.get("status") or {}
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": meta,
        "spec": {"replicas": thing["spec"].get("replicas", 0)},
        "status": {"replicas": status.get("replicas", 0), "selector": status.get("selector", "")},
    }
