"""`KubernetesCluster`: processes of a run as pods, beside a controller that is one itself.

One watch tells of all pods of this controller's epoch. What an earlier controller of the run has made is deleted before
anything is started. What this one makes is owned by its Job, so that it also goes when the controller cannot say so.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from random import Random

from agentrl.cluster.cluster import Place, Process, ProcessSpec
from agentrl.cluster.kubernetes.config import GpuSharing
from agentrl.cluster.kubernetes.engines import ATTEMPT, engine_objects
from agentrl.cluster.kubernetes.gpus import claims
from agentrl.cluster.kubernetes.pods import Program, field_of_pod
from agentrl.cluster.kubernetes.process import PodProcess
from agentrl.cluster.kubernetes.site import COMPONENT, Object, Site, component
from agentrl.cluster.kubernetes.trainers import model_objects, torchrun_arguments, trainer_objects
from agentrl.cluster.kubernetes.workload import Workload, made_kinds
from agentrl.errors import UserError
from agentrl.kubernetes.client import KubernetesClient
from agentrl.kubernetes.errors import AlreadyExists
from agentrl.kubernetes.names import EPOCH, ROLE, RUN
from agentrl.kubernetes.resources import PODS, resource_of
from agentrl.kubernetes.watch import Watched
from agentrl.kubernetes.watch_state import Change

_POD_IP = "AGENTRL_POD_IP"
_HEALTH = "/health"
_COMPONENTS = "engine, trainer, model, gpus"


class KubernetesCluster:
    """A `Cluster` in the namespace of the controller's own pod."""

    def __init__(
        self, client: KubernetesClient, site: Site, workload: Workload, *, pod_ip: str, entropy: Random
    ) -> None:
        """`pod_ip`: of the controller."""
        self._client = client
        self._site = site
        self._workload = workload
        self._pod_ip = pod_ip
        self._entropy = entropy
        self._attempts: Counter[str] = Counter()
        self._processes: dict[tuple[str, str], PodProcess] = {}
        labels = f"{RUN}={site.run},{EPOCH}={site.epoch},{ATTEMPT}"
        self._watched = Watched(client, PODS, labels=labels, on_change=self._on_change, entropy=entropy)
        self._watching: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Delete what earlier controllers of the run have left, and begin to watch."""
        older = f"{RUN}={self._site.run},{EPOCH},{EPOCH}!={self._site.epoch},{COMPONENT} in ({_COMPONENTS})"
        for kind in made_kinds(self._workload):
            for found in (await self._client.list_all(kind, labels=older)).items:
                await self._client.delete(kind, found["metadata"]["name"])
        self._watching = asyncio.create_task(self._watched.run(), name="pods")

    def place(self, role: str) -> Place:
        python = self._workload.kubernetes.python
        if role == "controller":
            port = self._workload.kubernetes.controller_port
            return Place(python=python, sglang_python=python, host=self._pod_ip, port=port, own_gpus=True)
        port = self._workload.kubernetes.engine_port
        return Place(python=python, sglang_python=python, host=f"$({_POD_IP})", port=port, own_gpus=True)

    def torchrun(self, world_size: int) -> list[str]:
        return torchrun_arguments(world_size, self._workload.kubernetes.trainer.nodes)

    async def start(self, spec: ProcessSpec) -> Process:
        self._attempts[spec.role] += 1
        attempt = self._attempts[spec.role]
        objects, num_pods = self._objects(spec, attempt)
        process = PodProcess(self._client, objects, num_pods=num_pods, log=spec.log, entropy=self._entropy)
        for key in [key for key in self._processes if key[0] == spec.role]:
            await self._processes.pop(key).stop(0.0)  # it has ended; its objects are still there
        # Before its objects are: the watch may tell of its pods at once.
        self._processes[spec.role, str(attempt)] = process
        if self._workload.sharing is GpuSharing.claim:
            objects = [*claims(self._site, self._workload), *objects]
        for obj in objects:
            await self._create(obj)
        return process

    def _objects(self, spec: ProcessSpec, attempt: int) -> tuple[list[Object], int]:
        """What the process is made of, and how many pods it has."""
        kubernetes, role = self._workload.kubernetes, component(spec.role)
        env: dict[str, str | Object] = {**spec.env, _POD_IP: field_of_pod("status.podIP")}
        program = Program(role=spec.role, argv=spec.argv, env=env, grace_s=self._workload.stop_grace_s)
        if role == "engine":
            program = replace(program, port=kubernetes.engine_port, health=_HEALTH)
            return engine_objects(self._site, self._workload, program, attempt=attempt), kubernetes.engine.nodes
        if role == "trainer":
            return trainer_objects(self._site, self._workload, program, attempt=attempt), kubernetes.trainer.nodes
        return model_objects(self._site, self._workload, program, attempt=attempt), 1

    async def _create(self, obj: Object) -> None:
        """Names are this epoch's alone, so what is there already is ours. Raises UserError if it is not."""
        resource = resource_of(obj)
        try:
            await self._client.create(resource, obj)
        except AlreadyExists:
            found = await self._client.get(resource, obj["metadata"]["name"])
            if (found["metadata"].get("labels") or {}).get(RUN) != self._site.run:
                name = f"{resource.kind} {obj['metadata']['name']}"
                raise UserError(f"{name} exists and is not of run {self._site.run}", hint="delete it") from None

    def _on_change(self, change: Change) -> None:
        labels = change.object["metadata"].get("labels") or {}
        process = self._processes.get((labels.get(ROLE, ""), labels.get(ATTEMPT, "")))
        if process is not None:
            process.on_change(change)

    async def close(self, grace_s: float) -> None:
        async with asyncio.TaskGroup() as group:
            for process in self._processes.values():
                group.create_task(process.stop(grace_s))
        if self._watching is not None:
            self._watching.cancel()
        await self._client.close()
