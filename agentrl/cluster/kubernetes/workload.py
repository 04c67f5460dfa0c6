"""What of a job decides its objects. `agentrl.config.kubernetes` makes one from the whole configuration."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.cluster.kubernetes.config import (
    AccessMode,
    EngineKind,
    GpuSharing,
    KubernetesConfig,
    PodConfig,
    TrainerKind,
)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A job's processes, and how they are to be placed."""

    kubernetes: KubernetesConfig
    version: str
    """Of agentrl, and so of its images."""
    mount: str
    """Where pods have the volume of the runs: cluster.runs_dir."""
    stop_grace_s: float
    num_engines: int
    """Engines that the controller starts."""
    embedded: bool
    """Engines are agentrl's own, so that their image is the trainer's."""
    gpus_per_engine: int
    """Over all its nodes; 0: it computes on CPUs."""
    num_swing: int
    """Engines, the first ones, whose GPUs the trainer uses too."""
    world_size: int
    """Trainer ranks over all nodes."""

    @property
    def shared_gpus(self) -> bool:
        """Whether trainer and swing engines have to come to the same GPUs."""
        return self.num_swing > 0 and self.gpus_per_engine > 0

    @property
    def one_node(self) -> bool:
        """Whether the volume holds all pods on one node."""
        return self.kubernetes.volume.access is AccessMode.ReadWriteOnce

    def pod(self, component: str) -> PodConfig:
        """Settings of a role's pods; the model recipe runs where the trainer will."""
        pods = {"controller": self.kubernetes.controller, "engine": self.kubernetes.engine}
        return pods.get(component, self.kubernetes.trainer)

    def image(self, component: str) -> str:
        """Image of a role's containers."""
        if (image := self.pod(component).image) is not None:
            return image
        name = {"controller": "controller", "engine": "trainer" if self.embedded else "engine"}.get(
            component, "trainer"
        )
        return f"{self.kubernetes.images}/{name}:{self.version}"

    def gpus(self, component: str) -> int:
        """GPUs of each pod of a role."""
        pod = self.pod(component)
        if pod.gpus is not None:
            return pod.gpus
        return self.gpus_per_engine // pod.nodes if component == "engine" else 0


@dataclass(frozen=True, kw_only=True)
class Served:
    """What decides between objects that do the same: the API groups that a cluster serves."""

    groups: frozenset[str]

    def __contains__(self, group: str) -> bool:
        return group in self.groups


JOBSET = "jobset.x-k8s.io"
LEADERWORKERSET = "leaderworkerset.x-k8s.io"
TRAINJOB = "trainer.kubeflow.org"
DEVICES = "resource.k8s.io"
KUEUE = "kueue.x-k8s.io"
AGENT_SANDBOX = "agents.x-k8s.io"


def engine_kind(workload: Workload) -> EngineKind:
    """The kind that is meant, without `auto`."""
    wanted = workload.kubernetes.engine_kind
    if wanted is not EngineKind.auto:
        return wanted
    return EngineKind.leaderworkerset if workload.kubernetes.engine.nodes > 1 else EngineKind.statefulset


def trainer_kind(workload: Workload, served: Served) -> TrainerKind:
    """The kind that is meant, without `auto`."""
    wanted = workload.kubernetes.trainer_kind
    if wanted is not TrainerKind.auto:
        return wanted
    return TrainerKind.jobset if JOBSET in served else TrainerKind.job


def gpu_sharing(workload: Workload, served: Served) -> GpuSharing | None:
    """How swing GPUs are shared, without `auto`; None if there are none."""
    if not workload.shared_gpus:
        return None
    wanted = workload.kubernetes.gpu_sharing
    if wanted is not GpuSharing.auto:
        return wanted
    return GpuSharing.claim if DEVICES in served else GpuSharing.visible
