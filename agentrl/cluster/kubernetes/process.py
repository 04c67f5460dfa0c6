"""One start of a role as pods: when it has ended, where it is reached, what it printed, and how it is taken down."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from random import Random

from agentrl.cluster.kubernetes import pod_state
from agentrl.cluster.kubernetes.site import Object
from agentrl.kubernetes.client import KubernetesClient
from agentrl.kubernetes.errors import KubernetesError
from agentrl.kubernetes.logs import follow_log
from agentrl.kubernetes.resources import resource_of
from agentrl.kubernetes.watch_state import Change, Kind

_LAST_WORDS_S = 5.0
"""For what a pod printed last to come through after it has ended."""
_DEAD_NODE_S = 60.0
"""Beyond its grace, until a pod that does not go is taken from the API without its kubelet's word."""

logger = logging.getLogger(__name__)


class PodProcess:
    """A `Process`. Told of its pods by the cluster's watch."""

    def __init__(
        self, client: KubernetesClient, objects: Sequence[Object], *, num_pods: int, log: Path, entropy: Random
    ) -> None:
        """`objects`: what it is made of; `log`: where its pods' output goes."""
        self._client = client
        self._objects = list(objects)
        self._num_pods = num_pods
        self._log = log
        self._entropy = entropy
        self._pods: dict[str, Object] = {}
        self._had = 0
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._changed = asyncio.Event()
        self._followers: dict[str, asyncio.Task[None]] = {}
        self._said: set[str] = set()

    @property
    def address(self) -> str | None:
        return pod_state.address(self._pods.values())

    def on_change(self, change: Change) -> None:
        """One of its pods has changed."""
        pod = change.object
        uid = pod["metadata"]["uid"]
        if change.kind is Kind.GONE:
            self._pods.pop(uid, None)
        else:
            self._pods[uid] = pod
            self._had = max(self._had, len(self._pods))
            if uid not in self._followers:
                self._followers[uid] = asyncio.create_task(self._follow(pod["metadata"]["name"]))
        if (said := pod_state.plight(pod)) and said not in self._said:
            self._said.add(said)
            self._append(said)
        code = pod_state.exit_code(self._pods.values(), expected=self._num_pods, had=self._had)
        if code is not None and not self._ended.done():
            self._ended.set_result(code)
        self._changed.set()

    async def wait(self) -> int:
        code = await asyncio.shield(self._ended)
        if self._followers:
            await asyncio.wait(self._followers.values(), timeout=_LAST_WORDS_S)
        return code

    async def stop(self, grace_s: float) -> int:
        objects, self._objects = self._objects, []
        for obj in objects:
            await self._delete(obj)
        await self._end_pods(max(1, math.ceil(grace_s)))
        for follower in self._followers.values():
            follower.cancel()
        if not self._ended.done():
            self._ended.set_result(pod_state.LOST)
        return self._ended.result()

    async def _end_pods(self, grace_s: int) -> None:
        """Until none is left. What made them is gone, so none comes anew."""
        asked: set[str] = set()
        try:
            async with asyncio.timeout(grace_s + _DEAD_NODE_S):
                while self._pods:
                    self._changed.clear()
                    for uid, pod in list(self._pods.items()):
                        if uid not in asked:
                            asked.add(uid)
                            await self._delete(pod, grace_s=grace_s)
                    await self._changed.wait()
        except TimeoutError:
            for pod in list(self._pods.values()):
                logger.warning("pod %s does not end: its node may be lost", pod["metadata"]["name"])
                await self._delete(pod, grace_s=0)

    async def _delete(self, obj: Object, grace_s: int | None = None) -> None:
        await self._client.delete(resource_of(obj), obj["metadata"]["name"], grace_s=grace_s)

    async def _follow(self, pod: str) -> None:
        try:
            async for line in follow_log(self._client, pod, entropy=self._entropy):
                self._append(line)
        except KubernetesError as error:
            self._append(f"its log cannot be read: {error}")

    def _append(self, line: str) -> None:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
