"""What of a job decides its objects. `agentrl.config.kubernetes` makes one from the whole configuration."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from agentrl.cluster.kubernetes.config import (
    AccessMode,
    EngineKind,
    GpuSharing,
    KubernetesConfig,
    PodConfig,
    TrainerKind,
)
from agentrl.cluster.kubernetes.site import Object
from agentrl.kubernetes.resources import (
    JOB_SETS,
    JOBS,
    LEADER_WORKER_SETS,
    PODS,
    RESOURCE_CLAIMS,
    SERVICES,
    STATEFUL_SETS,
    TRAIN_JOBS,
    Resource,
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

    @property
    def sharing(self) -> GpuSharing | None:
        """How swing GPUs are shared; None if there are none."""
        return self.kubernetes.gpu_sharing if self.shared_gpus else None


@dataclass(frozen=True, kw_only=True)
class Submission:
    """One run to be started."""

    run: str
    workload: Workload
    config_json: str
    config_text: str
    sandbox_rules: list[Object]
    """What the sandboxes' provider needs in the controller's Role."""
    has_recipe: bool
    """Whether the starting weights are made by a process of their own."""


def settled(kubernetes: KubernetesConfig, groups: Collection[str]) -> KubernetesConfig:
    """The settings without `auto`, for a cluster that serves these API groups: decided once, when a run is launched."""
    engine, trainer, sharing = kubernetes.engine_kind, kubernetes.trainer_kind, kubernetes.gpu_sharing
    if engine is EngineKind.auto:
        engine = EngineKind.leaderworkerset if kubernetes.engine.nodes > 1 else EngineKind.statefulset
    if trainer is TrainerKind.auto:
        trainer = TrainerKind.jobset if JOB_SETS.group in groups else TrainerKind.job
    if sharing is GpuSharing.auto:
        sharing = GpuSharing.claim if RESOURCE_CLAIMS.group in groups else GpuSharing.visible
    return replace(kubernetes, engine_kind=engine, trainer_kind=trainer, gpu_sharing=sharing)


def made_kinds(workload: Workload) -> list[Resource]:
    """Kinds of objects that the controller makes for its processes, those that make pods before the pods."""
    kubernetes = workload.kubernetes
    kinds = [JOBS]
    if kubernetes.engine_kind is EngineKind.leaderworkerset:
        kinds.append(LEADER_WORKER_SETS)
    elif kubernetes.engine_kind is EngineKind.statefulset:
        kinds.append(STATEFUL_SETS)
    if kubernetes.trainer_kind is TrainerKind.jobset:
        kinds.append(JOB_SETS)
    elif kubernetes.trainer_kind is TrainerKind.trainjob:
        kinds.append(TRAIN_JOBS)
    elif kubernetes.trainer.nodes > 1:
        kinds.append(SERVICES)
    kinds.append(PODS)
    return [*kinds, RESOURCE_CLAIMS] if workload.sharing is GpuSharing.claim else kinds
