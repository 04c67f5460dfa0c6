"""The kubelets of all nodes: a worker for every pod that is bound to one, and the faults that tests ask for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

from .access import Access, service_account
from .errors import Object
from .events import Recorder
from .law import PodLaw, draw
from .pod_status import set_condition
from .pod_worker import PodWorker
from .resources import CONFIG_MAPS, NODES, PODS, SECRETS
from .runtime import Runtime
from .store import Change
from .volumes import Volumes


class Kubelet:
    """Sees pods, keeps a worker for each."""

    def __init__(
        self,
        folder: Path,
        access: Access,
        recorder: Recorder,
        law: PodLaw,
        *,
        make_runtime: Callable[[Callable[[], PodLaw]], Runtime],
        base_env: Callable[[], dict[str, str]],
        hosts: Callable[[Object], Path],
    ) -> None:
        self.folder = folder
        self.store = access.store
        self.access = access
        self.recorder = recorder
        self.law = law
        self.runtime = make_runtime(lambda: self.law)
        self.base_env = base_env
        self.hosts = hosts
        self.chance = random.Random(0)
        self.workers: dict[str, PodWorker] = {}
        self.lost_nodes: set[str] = set()
        self._images: set[tuple[str, str]] = set()
        self._addresses = iter(f"127.10.{high}.{low}" for high in range(256) for low in range(1, 255))
        self._closing = False

    def see(self, change: Change) -> None:
        """Called after every change in the store."""
        if change.resource != PODS or self._closing:
            return
        pod, uid = change.thing, change.thing["metadata"]["uid"]
        node = pod["spec"].get("nodeName")
        worker = self.workers.get(uid)
        if change.type == "DELETED":
            if worker is not None:
                worker.vanish()
        elif worker is not None:
            worker.refresh(pod)
        elif node and node not in self.lost_nodes and pod["status"]["phase"] not in ("Succeeded", "Failed"):
            self.workers[uid] = PodWorker(self, pod, self._volumes(pod), next(self._addresses))
        elif node and node not in self.lost_nodes and pod["metadata"].get("deletionTimestamp"):
            self.store.remove(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"])

    def forget(self, uid: str) -> None:
        self.workers.pop(uid, None)

    async def close(self) -> None:
        """End every container, and wait until it has ended."""
        self._closing = True
        workers = list(self.workers.values())
        for worker in workers:
            worker.vanish()
        await asyncio.gather(*(worker.task for worker in workers), return_exceptions=True)

    def pull_s(self, node: str, image: str) -> float:
        """How long a node needs for an image; nothing the second time."""
        if (node, image) in self._images:
            return 0.0
        self._images.add((node, image))
        return draw(self.law.pull_s, self.chance)

    def worker(self, namespace: str, name: str) -> PodWorker:
        """The worker of a pod by its name.

        Raises:
            ApiError: 404.
        """
        uid = self.store.get(PODS, namespace, name)["metadata"]["uid"]
        return self.workers[uid]

    def _volumes(self, pod: Object) -> Volumes:
        namespace = pod["metadata"]["namespace"]
        kinds = {"ConfigMap": CONFIG_MAPS, "Secret": SECRETS}

        def token(pod: Object) -> str:
            return self.access.token_of(service_account(namespace, pod["spec"]["serviceAccountName"]))

        folder = self.folder / "pods" / pod["metadata"]["uid"] / "volumes"
        return Volumes(
            folder,
            self.folder / "claims",
            self.store,
            lambda kind, name: self.store.find(kinds[kind], namespace, name),
            token,
            writes=self.runtime.has_processes,
        )

    # Faults

    async def kill(self, namespace: str, name: str, exit_code: int) -> None:
        for container in self.worker(namespace, name).running.values():
            container.kill(exit_code)

    async def oom(self, namespace: str, name: str, container: str) -> None:
        worker = self.worker(namespace, name)
        chosen = container or next(iter(worker.running))
        worker.oom_killed.add(chosen)
        worker.running[chosen].kill(137)

    async def evict(self, namespace: str, name: str, resource: str) -> None:
        worker = self.worker(namespace, name)
        names = " ".join(f"Container {one['name']} was using 900Mi, request is 0, has larger consumption of {resource}."
                         for one in worker.pod["spec"]["containers"])  # fmt: skip
        message = f"The node was low on resource: {resource}. Threshold quantity: 100Mi, available: 50Mi. {names} "
        self.recorder.say(worker.pod, "Warning", "Evicted", message, host=worker.node)
        await worker.end("Evicted", message, ("TerminationByKubelet", message))

    async def lose_node(self, name: str) -> list[Object]:
        """Everything on a node stops at once and nobody tells. The answer: its pods."""
        self.lost_nodes.add(name)
        lost = [worker for worker in self.workers.values() if worker.node == name]
        for worker in lost:
            worker.vanish(silently=True)
        await asyncio.gather(*(worker.task for worker in lost), return_exceptions=True)

        def unknown(node: Object) -> None:
            for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready"):
                set_condition(node, kind, "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
            taint = {"key": "node.kubernetes.io/unreachable"}
            node["spec"]["taints"] = [{**taint, "effect": "NoSchedule"}, {**taint, "effect": "NoExecute"}]

        self.store.change(NODES, "", name, unknown)
        return [worker.pod for worker in lost]
