"""What every new namespace gets, and the end of one that is deleted."""

from __future__ import annotations

import asyncio

from ..api import Api, DeleteOptions
from ..defaults import fill
from ..errors import Object
from ..resources import CONFIG_MAPS, NAMESPACES, SERVICE_ACCOUNTS
from ..store import Change


class Namespaces:
    """The namespace controller, the service account controller and the publisher of the root certificate."""

    def __init__(self, api: Api, authority: str) -> None:
        self._api = api
        self._store = api.store
        self._authority = authority

    def make(self, name: str) -> None:
        thing: Object = {"metadata": {"name": name}}
        fill(NAMESPACES, thing)
        self._store.create(NAMESPACES, thing)

    def see(self, change: Change) -> None:
        if change.resource == NAMESPACES:
            name = change.thing["metadata"]["name"]
            if change.type == "ADDED":
                self._store.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default", "namespace": name}})
                self._store.create(
                    CONFIG_MAPS,
                    {"metadata": {"name": "kube-root-ca.crt", "namespace": name}, "data": {"ca.crt": self._authority}},
                )
            elif change.type == "MODIFIED" and change.thing["metadata"].get("deletionTimestamp"):
                asyncio.get_running_loop().call_soon(self._empty, name)
        elif change.type == "DELETED":
            space = self._store.find(NAMESPACES, "", change.thing["metadata"].get("namespace", ""))
            if space is not None and space["metadata"].get("deletionTimestamp"):
                asyncio.get_running_loop().call_soon(self._finish, space["metadata"]["name"])

    def _empty(self, name: str) -> None:
        for resource, thing in self._store.everything():
            if thing["metadata"].get("namespace") == name and not thing["metadata"].get("deletionTimestamp"):
                self._api.delete(resource, name, thing["metadata"]["name"], DeleteOptions(propagation="Background"))
        self._finish(name)

    def _finish(self, name: str) -> None:
        left = any(thing["metadata"].get("namespace") == name for _, thing in self._store.everything())
        if not left and self._store.find(NAMESPACES, "", name) is not None:
            self._store.remove(NAMESPACES, "", name)
