"""`PodCluster`: the connection that all sandboxes of a provider share, what they share in the cluster, and the
watch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random

from agentrl.errors import SandboxError, UserError
from agentrl.kubernetes.client import KubernetesClient, Object
from agentrl.kubernetes.connection import connect
from agentrl.kubernetes.errors import AlreadyExists, Forbidden, KubernetesError, NotFound, QuotaExceeded
from agentrl.kubernetes.exec import ExecStream, exec_in_pod
from agentrl.kubernetes.limits import RateLimit
from agentrl.kubernetes.names import EPISODE, EPOCH, ROLE, RUN, label_value, selector
from agentrl.kubernetes.resources import (
    CONFIG_MAPS,
    EVENTS,
    NETWORK_POLICIES,
    PODS,
    SANDBOX_CLAIMS,
    SANDBOX_TEMPLATES,
    SANDBOX_WARM_POOLS,
    Resource,
)
from agentrl.kubernetes.watch import Watched
from agentrl.sandbox.config import SandboxConfig
from agentrl.sandbox.owner import SandboxOwner
from agentrl.sandbox.pods.calls import Turn
from agentrl.sandbox.pods.evidence import CONTAINER, told_by_events
from agentrl.sandbox.pods.pod import ROLE as SANDBOX_ROLE
from agentrl.sandbox.pods.pod import network_policy, runner_map
from agentrl.sandbox.pods.views import PodView, PodViews

QUOTA_PAUSE_S = 5.0
"""Between tries while a quota has no room."""
GONE_TIMEOUT_S = 60.0
"""How long pods that were deleted may take to be gone, at the end of a run."""
STALE_S = 150.0
"""Silence of the API server after which what the watch knows is not believed without asking: it says something about
every minute."""

SANDBOX_KINDS = (SANDBOX_CLAIMS, SANDBOX_WARM_POOLS, SANDBOX_TEMPLATES, PODS, NETWORK_POLICIES, CONFIG_MAPS)
"""Kinds of objects that sandboxes are made of, in the order in which they are deleted."""

logger = logging.getLogger(__name__)


class PodCluster:
    """Open it once, in the event loop that it is used in."""

    def __init__(self, config: SandboxConfig, owner: SandboxOwner) -> None:
        self.config = config
        self.owner = owner
        self.views = PodViews()
        self.entropy = Random()
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._client: KubernetesClient | None = None
        self._watched: Watched | None = None
        self._watching: asyncio.Task[None] | None = None
        self._shared: list[tuple[Resource, str]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._said_quota = False
        self._has_worked = False

    @property
    def client(self) -> KubernetesClient:
        assert self._client is not None, "it is open"
        return self._client

    async def open(self) -> None:
        """Connect, reap what older epochs left, make what sandboxes share, and begin to watch. Raises UserError,
        KubernetesError."""
        settings = self.config.kubernetes
        connection = await connect(
            kubeconfig=settings.kubeconfig, context=settings.context, namespace=settings.namespace
        )
        limit = RateLimit(per_s=settings.requests_per_s, burst=settings.request_burst)
        self._client = KubernetesClient(connection, limit=limit, entropy=self.entropy, retry_for_s=settings.reconnect_s)
        await delete_older(self._client, self.owner.run, epoch=self.owner.epoch)
        await self.share(CONFIG_MAPS, runner_map(self.owner))
        if settings.network_policy:
            await self.share(NETWORK_POLICIES, network_policy(self.owner, internet=settings.internet))
        chosen = selector({RUN: label_value(self.owner.run), ROLE: SANDBOX_ROLE, EPOCH: str(self.owner.epoch)})
        self._watched = Watched(self._client, PODS, labels=chosen, on_change=self.views.tell, entropy=self.entropy)
        self._watching = asyncio.create_task(self._watched.run(), name="watch of sandboxes")
        synced = asyncio.create_task(self._watched.synced())
        await asyncio.wait({self._watching, synced}, return_when=asyncio.FIRST_COMPLETED)
        if self._watching.done():
            synced.cancel()
            await self._watching

    async def share(self, resource: Resource, body: Object) -> None:
        """Make an object that sandboxes of this life share; it goes with `close`."""
        name = body["metadata"]["name"]
        self._shared.append((resource, name))
        with suppress(AlreadyExists):  # the answer to the first try was lost: names carry the epoch
            await self.client.create(resource, body)

    async def create(self, resource: Resource, body: Object) -> Object:
        """Make an object of our own, once; while a quota has no room, wait. Raises SandboxError, UserError."""
        while True:
            try:
                made = await self.client.create(resource, body)
                self._has_worked = True
                return made
            except AlreadyExists as error:
                return await self._ours(resource, body, error)
            except QuotaExceeded as error:
                if not self._said_quota:
                    self._said_quota = True
                    logger.warning("sandboxes wait for the quota: %s", error)
                await asyncio.sleep(QUOTA_PAUSE_S * (0.5 + self.entropy.random()))
            except KubernetesError as error:
                if isinstance(error, UserError) and not self._has_worked:
                    raise  # a person must look; what has worked before is refused in passing, as by a starting server
                raise SandboxError(str(error)) from error

    def view(self, name: str) -> PodView:
        """Begin to follow a pod."""
        view = self.views.add(name)
        for found in () if self._watched is None else self._watched.objects:
            if found["metadata"]["name"] == name:
                view.see(found)
        return view

    async def delete(self, resource: Resource, name: str) -> bool:
        """Have it deleted; False if it is gone. Raises SandboxError."""
        if self._client is None:
            return False  # it went with all others
        try:
            return await self._client.delete(resource, name)
        except KubernetesError as error:
            raise SandboxError(f"{resource.kind} {name} is not deleted: {error}") from error

    async def open_stream(self, view: PodView, command: list[str]) -> ExecStream:
        """Start a program in a pod. Raises KubernetesError."""
        return await exec_in_pod(self.client, view.name, command, container=CONTAINER)

    def turn_on(self, view: PodView) -> Turn:
        """For `Calls`: a place among what begins at once on a pod's node."""

        @asynccontextmanager
        async def turn() -> AsyncIterator[None]:
            limit = self._turns.setdefault(view.node, asyncio.Semaphore(self.config.kubernetes.exec_per_node))
            async with limit:
                yield

        return turn

    def up_to_date(self) -> bool:
        """Whether the watch's word can be relied on."""
        silent_s = None if self._watched is None else self._watched.silent_s()
        return silent_s is not None and silent_s < STALE_S

    def note_episode(self, view: PodView, episode: str | None) -> None:
        """Label a pod with whose it is, soon; for people only, so it does not matter if that fails."""

        async def label() -> None:
            with suppress(KubernetesError):
                value = None if episode is None else label_value(episode)
                await self.client.patch(PODS, view.name, {"metadata": {"labels": {EPISODE: value}}})

        task = asyncio.create_task(label())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def warnings(self, view: PodView) -> str:
        """What the cluster's events say of a pod, for messages; empty where nothing can be had."""
        try:
            found = await self.client.list_all(EVENTS, fields=f"involvedObject.name={view.name}")
        except KubernetesError:
            return ""
        return told_by_events(found.items)

    async def close(self) -> None:
        """Delete all that this life made, and see that it is gone. Idempotent."""
        if self._client is None:
            return
        client, self._client = self._client, None
        try:
            await delete_life(client, self.owner, self._shared)
        except KubernetesError as error:
            logger.warning("sandboxes may be left in the cluster, until their deadline: %s", error)
        finally:
            for task in (*self._tasks, self._watching):
                if task is not None:
                    task.cancel()
            await client.close()

    async def _ours(self, resource: Resource, body: Object, error: AlreadyExists) -> Object:
        """An object of this name is there: what an earlier try of the same request made, or somebody else's."""
        name = body["metadata"]["name"]
        found = await self.client.find(resource, name)
        mine, theirs = body["metadata"].get("annotations"), (found or {"metadata": {}})["metadata"].get("annotations")
        if found is None or not mine or any((theirs or {}).get(key) != value for key, value in mine.items()):
            raise SandboxError(f"{resource.kind} {name} is somebody else's: {error}")
        return found


async def reap(config: SandboxConfig, run: str) -> int:
    """Delete all sandboxes of a run that has no controller. Returns how many there were. Raises as `open` does."""
    settings = config.kubernetes
    connection = await connect(kubeconfig=settings.kubeconfig, context=settings.context, namespace=settings.namespace)
    async with KubernetesClient(connection, retry_for_s=settings.reconnect_s) as client:
        return await delete_older(client, run)


async def delete_older(client: KubernetesClient, run: str, *, epoch: int | None = None) -> int:
    """Delete the sandboxes of a run's controllers of epochs below `epoch`, or of all. Returns how many there were."""
    chosen = selector({RUN: label_value(run), ROLE: SANDBOX_ROLE})
    number = 0
    for resource in SANDBOX_KINDS:
        try:
            listed = await client.list_all(resource, labels=chosen)
        except NotFound:  # a kind that the cluster does not serve
            continue
        except Forbidden:
            if resource is PODS:
                raise
            continue  # a controller has rights to the kinds that its run is made of, and made no other
        for found in listed.items:
            meta = found["metadata"]
            theirs = meta["labels"].get(EPOCH, "")
            if epoch is None or (theirs.isdigit() and int(theirs) < epoch):
                number += await client.delete(resource, meta["name"]) and resource is PODS
    return number


async def delete_life(client: KubernetesClient, owner: SandboxOwner, shared: list[tuple[Resource, str]]) -> None:
    """Delete what one controller's life made, and wait until its pods are gone. What they share goes first: with a warm
    pool of the cluster's there, pods would come back."""
    chosen = selector({RUN: label_value(owner.run), ROLE: SANDBOX_ROLE, EPOCH: str(owner.epoch)})
    for resource, name in reversed(shared):
        await client.delete(resource, name)
    if any(resource is SANDBOX_TEMPLATES for resource, _ in shared):
        await client.delete_all(SANDBOX_CLAIMS, labels=chosen)
    await client.delete_all(PODS, labels=chosen)
    try:
        async with asyncio.timeout(GONE_TIMEOUT_S):
            while (await client.list_all(PODS, labels=chosen)).items:  # noqa: ASYNC110 (elsewhere)
                await asyncio.sleep(0.25)
    except TimeoutError:
        logger.warning("pods of %s are still terminating after %g s", owner.run, GONE_TIMEOUT_S)
