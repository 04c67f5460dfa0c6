"""Everything of a cluster, put together on one loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from .access import Access
from .admission import Admission
from .api import Api, DeleteOptions
from .controllers.base import Controller
from .controllers.garbage import GarbageCollector
from .controllers.job_sets import JobSetController, TrainJobController, torch_runtime
from .controllers.jobs import JobController
from .controllers.kueue import Kueue, hold
from .controllers.leader_workers import LeaderWorkerController
from .controllers.namespaces import Namespaces
from .controllers.quotas import QuotaController
from .controllers.sandboxes import SandboxClaimController, SandboxController, WarmPoolController
from .controllers.services import Services
from .controllers.stateful_sets import StatefulSetController
from .controllers.storage import CLASSES, ClaimController, storage_class
from .errors import Object
from .events import Recorder
from .eviction import EvictionHandler
from .exec import ExecHandler
from .http import Front
from .kubelet import Kubelet
from .law import PodLaw
from .law_runtime import ExecLaw, LawRuntime
from .logs import LogHandler
from .pod_status import set_condition
from .process_runtime import ImageRule, ProcessRuntime
from .resources import CLUSTER_TRAINING_RUNTIMES, CUSTOM_DEFINITIONS, NODES, PODS, STORAGE_CLASSES, Catalog
from .reviews import Reviews
from .runtime import Runtime
from .scale import ScaleHandler
from .scheduler import Scheduler
from .server import HOST, Certificates, Server
from .store import Change, Store

OWN_LABELS = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
NODE_INFO = {
    "kubeletVersion": "v1.36.2",
    "kubeProxyVersion": "v1.36.2",
    "containerRuntimeVersion": "containerd://2.1.4",
    "osImage": "Debian GNU/Linux 12",
    "kernelVersion": "6.1.0",
    "operatingSystem": "linux",
    "architecture": "amd64",
}
CALM = {
    "MemoryPressure": "KubeletHasSufficientMemory",
    "DiskPressure": "KubeletHasNoDiskPressure",
    "PIDPressure": "KubeletHasSufficientPID",
}


@dataclass(frozen=True)
class NodeSpec:
    """A node. ``resources`` is what pods can have of it beside CPU, memory and a number of pods."""

    name: str
    cpu: str = "64"
    memory: str = "256Gi"
    pods: int = 1000
    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[Object, ...] = ()
    resources: dict[str, str] = field(default_factory=dict)


class Machine:
    """The store, the API before it, and all that works behind it."""

    def __init__(
        self,
        folder: Path,
        *,
        serve: Iterable[str],
        nodes: Iterable[NodeSpec],
        images: Iterable[ImageRule] | None,
        law: PodLaw,
        exec_law: ExecLaw | None,
        history: int,
        bookmark_s: float,
    ) -> None:
        self.folder = folder
        self.store = Store(history)
        self.catalog = Catalog(serve)
        self.access = Access(self.store)
        self.admission = Admission(self.store, (hold,) if "kueue" in self.catalog.serves else ())
        self.api = Api(self.store, self.catalog, self.access, self.admission)
        self.recorder = Recorder(self.store)
        self.front = Front(self.api, bookmark_s=bookmark_s)
        self.certificates = Certificates(folder)
        self.server = Server(self.front, self.certificates)
        self.services = Services(self.store, self.recorder, folder / "run" / "hosts", forwards=images is not None)
        rules = None if images is None else tuple(images)

        def make_runtime(law: Callable[[], PodLaw]) -> Runtime:
            if rules is not None:
                return ProcessRuntime(rules)
            return LawRuntime(law) if exec_law is None else LawRuntime(law, answer=exec_law)

        self.kubelet = Kubelet(
            folder / "run", self.access, self.recorder, law,
            make_runtime=make_runtime, base_env=self._base_env, hosts=self.services.hosts,
        )  # fmt: skip
        self.scheduler = Scheduler(self.api, self.recorder, lambda: self.kubelet.law)
        self.exec = ExecHandler(self.kubelet)
        self.front.subresources |= {
            ("pods", "exec"): self.exec,
            ("pods", "log"): LogHandler(self.kubelet),
            ("pods", "eviction"): EvictionHandler(self.api),
        }
        reviews = Reviews(self.access)
        for plural in ("selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"):
            self.front.subresources[plural, ""] = reviews
        self.front.subresources["serviceaccounts", "token"] = reviews
        scale = ScaleHandler(self.api)
        for resource in self.catalog.resources:
            if "scale" in resource.subresources:
                self.front.subresources[resource.plural, "scale"] = scale
        self.namespaces = Namespaces(self.api, self.certificates.ca_file.read_text())
        self.garbage = GarbageCollector(self.api)
        self.controllers = self._controllers()
        self._nodes = tuple(nodes)
        self._changed = asyncio.Event()
        for part in (self.scheduler, self.kubelet, self.services, self.namespaces, self.garbage):
            self.store.listen(part.see)
        for controller in self.controllers:
            self.store.listen(controller.see)
        if "kueue" in self.catalog.serves:
            self.store.listen(Kueue(self.store).see)
        self.store.listen(self._note)

    async def start(self) -> None:
        for name in ("default", "kube-system", "kube-node-lease", "kube-public"):
            self.namespaces.make(name)
        for name in CLASSES:
            self.store.create(STORAGE_CLASSES, storage_class(name, default=name == "standard"))
        for definition in self.catalog.definitions():
            self.store.create(CUSTOM_DEFINITIONS, definition)
        if "kubeflow-trainer" in self.catalog.serves:
            self.store.create(CLUSTER_TRAINING_RUNTIMES, torch_runtime())
        for node in self._nodes:
            self.add_node(node)
        await self.server.start()

    async def stop(self) -> None:
        try:
            await self.server.stop()
        finally:
            await self._stop_pods()

    async def _stop_pods(self) -> None:
        self.scheduler.close()
        self.garbage.close()
        for controller in self.controllers:
            controller.close()
        await self.kubelet.close()
        await self.services.close()

    async def next_change(self) -> None:
        """Wait until something was written."""
        self._changed.clear()
        await self._changed.wait()

    def forget_history(self) -> None:
        self.store.forget_history()
        self.api.forget_pages()

    def add_node(self, spec: NodeSpec) -> None:
        number = len(self.store.all(NODES)) + 1
        room = {
            "cpu": spec.cpu,
            "memory": spec.memory,
            "pods": str(spec.pods),
            "ephemeral-storage": "100Gi",
            **spec.resources,
        }
        node: Object = {
            "metadata": {
                "name": spec.name,
                "labels": {**OWN_LABELS, "kubernetes.io/hostname": spec.name, **spec.labels},
            },
            "spec": {"taints": list(spec.taints)} if spec.taints else {},
            "status": {
                "capacity": room,
                "allocatable": room,
                "addresses": [
                    {"type": "InternalIP", "address": f"127.11.0.{number}"},
                    {"type": "Hostname", "address": spec.name},
                ],
                "nodeInfo": {**NODE_INFO, **dict.fromkeys(("bootID", "machineID", "systemUUID"), spec.name)},
            },
        }  # fmt: skip
        for kind, reason in CALM.items():
            set_condition(node, kind, "False", reason)
        set_condition(node, "Ready", "True", "KubeletReady", "kubelet is posting ready status")
        self.store.create(NODES, node)

    async def lose_node(self, name: str, *, remove: bool) -> None:
        for pod in await self.kubelet.lose_node(name):
            meta = pod["metadata"]

            def mark(thing: Object) -> None:
                set_condition(thing, "Ready", "False", "NodeNotReady", "Node is not ready")
                said = "Taint manager: deleting due to NoExecute taint"
                set_condition(thing, "DisruptionTarget", "True", "DeletionByTaintManager", said)

            self.store.change(PODS, meta["namespace"], meta["name"], mark)
            self.recorder.say(pod, "Warning", "NodeNotReady", "Node is not ready", component="node-controller")
            said = f"Marking for deletion Pod {meta['namespace']}/{meta['name']}"
            self.recorder.say(pod, "Normal", "TaintManagerEviction", said, component="taint-eviction-controller")
            self.api.delete(PODS, meta["namespace"], meta["name"], DeleteOptions())
        if remove:
            self.store.remove(NODES, "", name)
            self._collect_orphans(name)

    def _collect_orphans(self, node: str) -> None:
        """Pods of a node that is no more: what the pod garbage collector does."""
        for pod in self.store.all(PODS):
            if pod["spec"].get("nodeName") != node:
                continue
            meta = pod["metadata"]

            def fail(thing: Object) -> None:
                if thing["status"]["phase"] not in ("Succeeded", "Failed"):
                    thing["status"]["phase"] = "Failed"
                    said = "PodGC: node no longer exists"
                    set_condition(thing, "DisruptionTarget", "True", "DeletionByPodGC", said)

            self.store.change(PODS, meta["namespace"], meta["name"], fail)
            self.store.remove(PODS, meta["namespace"], meta["name"])

    def _note(self, _: Change) -> None:
        self._changed.set()

    def _base_env(self) -> dict[str, str]:
        port = str(self.server.port)
        return {
            "KUBERNETES_SERVICE_HOST": HOST,
            "KUBERNETES_SERVICE_PORT": port,
            "KUBERNETES_SERVICE_PORT_HTTPS": port,
            "KUBERNETES_PORT": f"tcp://{HOST}:{port}",
        }

    def _controllers(self) -> tuple[Controller, ...]:
        def backoff_s() -> float:
            return self.kubelet.law.backoff_s

        clock = asyncio.get_running_loop().time
        made: list[Controller] = [
            JobController(self.api, self.recorder, backoff_s, clock),
            StatefulSetController(self.api, self.recorder),
            ClaimController(self.api, self.recorder, self.folder / "run" / "claims"),
            QuotaController(self.api, self.recorder, self.admission),
        ]
        if "agent-sandbox" in self.catalog.serves:
            kinds = (SandboxController, WarmPoolController, SandboxClaimController)
            made += [kind(self.api, self.recorder) for kind in kinds]
        more = {"jobset": JobSetController, "lws": LeaderWorkerController, "kubeflow-trainer": TrainJobController}
        made += [kind(self.api, self.recorder) for name, kind in more.items() if name in self.catalog.serves]
        return tuple(made)
