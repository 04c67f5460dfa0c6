"""`Watched`: an up-to-date copy of the objects that a selector matches, kept by one list and one watch, whatever
happens to the API server. What is to be done next is decided by `watch_state`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from random import Random

from agentrl.clock import monotonic
from agentrl.errors import UserError
from agentrl.kubernetes.client import KubernetesClient, Object, Request
from agentrl.kubernetes.errors import KubernetesError, Unreachable
from agentrl.kubernetes.resources import Resource
from agentrl.kubernetes.watch_state import Change, List, Watch, WatchState

SERVER_TIMEOUT_S = 240
"""After which the server ends a watch, so that a connection that died silently is noticed."""
SILENCE_S = 90.0
"""Bookmarks come about once a minute (k8s.io/apiserver, cacher): a watch that says nothing for longer is dead."""
NOISY_FAILURES = 5
"""Failures in a row from which on they are worth a warning."""

logger = logging.getLogger(__name__)


class Watched:
    """Run `run` as a task; `on_change` is called for each change, in order, in the event loop."""

    def __init__(
        self,
        client: KubernetesClient,
        resource: Resource,
        *,
        labels: str | None = None,
        fields: str | None = None,
        on_change: Callable[[Change], None] = lambda _: None,
        entropy: Random | None = None,
        server_timeout_s: int = SERVER_TIMEOUT_S,
    ) -> None:
        self._client = client
        self._resource = resource
        self._query = {
            key: value for key, value in (("labelSelector", labels), ("fieldSelector", fields)) if value is not None
        }
        self._labels, self._fields = labels, fields
        self._on_change = on_change
        self._entropy = entropy or Random()
        self._server_timeout_s = server_timeout_s
        self._state = WatchState()
        self._synced = asyncio.Event()

    @property
    def objects(self) -> list[Object]:
        """What is there, as far as is known."""
        return list(self._state.objects.values())

    def silent_s(self) -> float | None:
        """How long the server has said nothing; None before its first word."""
        return None if self._state.heard_at is None else monotonic() - self._state.heard_at

    async def synced(self) -> None:
        """Wait until the first list has come."""
        await self._synced.wait()

    async def run(self) -> None:
        """Watch until cancelled. Raises UserError when we may not, before the first list; later on it only warns."""
        while True:
            action = self._state.next(monotonic(), self._entropy.random())
            if action.after_s > 0:
                await asyncio.sleep(action.after_s)
            try:
                await self._carry_out(action)
            except KubernetesError as error:
                if isinstance(error, UserError) and not self._synced.is_set():
                    raise
                self._state.failed(error)
                noisy = self._state.failures >= NOISY_FAILURES
                logger.log(logging.WARNING if noisy else logging.DEBUG, "watch of %s: %s", self._resource.plural, error)

    async def _carry_out(self, action: List | Watch) -> None:
        if isinstance(action, List):
            listed = await self._client.list_all(self._resource, labels=self._labels, fields=self._fields)
            self._tell(self._state.listed(listed.items, listed.resource_version, monotonic()))
            self._synced.set()
        else:
            await self._watch(action.resource_version)

    async def _watch(self, resource_version: str) -> None:
        """Until the server ends it. Raises KubernetesError when it ends in any other way."""
        asked = Request(
            "GET",
            self._resource.path(self._client.namespace),
            what=f"watch {self._resource.plural} in {self._client.namespace}",
            counted=f"{self._resource.plural}/watch",
            query=self._query
            | {
                "watch": "true",
                "resourceVersion": resource_version,
                "allowWatchBookmarks": "true",
                "timeoutSeconds": str(self._server_timeout_s),
            },
        )
        async with self._client.stream(asked, silence_s=SILENCE_S) as lines:
            async for line in lines:
                try:
                    event = json.loads(line)
                except ValueError as error:  # cut off in its middle
                    raise Unreachable(f"{asked.what}: a broken event") from error
                self._tell(self._state.event(event, monotonic()))

    def _tell(self, changes: list[Change]) -> None:
        for change in changes:
            self._on_change(change)
