"""Configuration of a run's objects in a Kubernetes cluster. docs/kubernetes.md says what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from agentrl.bounds import Count, CountOrZero, Positive, Text


class EngineKind(Enum):
    """The object that one engine is."""

    auto = "auto"
    """statefulset; leaderworkerset for an engine over several nodes."""
    statefulset = "statefulset"
    """A StatefulSet of one pod: a lost node's engine comes back elsewhere without the controller."""
    leaderworkerset = "leaderworkerset"
    """A LeaderWorkerSet of engine.nodes pods (leaderworkerset.x-k8s.io)."""
    pod = "pod"
    """A bare pod; the controller replaces it when it is gone."""


class TrainerKind(Enum):
    """The object that the trainer is."""

    auto = "auto"
    """jobset where the cluster serves it, else job."""
    job = "job"
    """An Indexed Job, with a headless service if it has several nodes."""
    jobset = "jobset"
    """A JobSet (jobset.x-k8s.io)."""
    trainjob = "trainjob"
    """A Kubeflow TrainJob on the runtime trainer_runtime (trainer.kubeflow.org)."""


class GpuSharing(Enum):
    """How trainer ranks and swing engines come to the same GPUs."""

    auto = "auto"
    """claim where the cluster serves resource.k8s.io/v1 and GPUs are used, else visible."""
    claim = "claim"
    """A ResourceClaim that the pods share (dynamic resource allocation)."""
    visible = "visible"
    """The trainer asks for no GPU, goes where the engines are, and sees every GPU of the node. Only right where the
    swing engines have the whole node."""


class AccessMode(Enum):
    """Who may mount the volume of the runs."""

    ReadWriteMany = "ReadWriteMany"
    """Pods on any node."""
    ReadWriteOnce = "ReadWriteOnce"
    """Pods on one node: all pods but the sandboxes are placed together."""


@dataclass(frozen=True, kw_only=True)
class PodConfig:
    """The pods of one role."""

    image: Text | None = None
    """null: cluster.kubernetes.images with the role's name and agentrl's version."""

    nodes: Count = 1
    """Pods that one engine, or the trainer, is spread over. The controller has one."""

    cpus: Positive = 1.0
    """CPUs of each pod, asked for and not exceeded."""

    memory_mb: Count = 4096
    """Memory of each pod in MiB, asked for and not exceeded."""

    gpus: CountOrZero | None = None
    """GPUs of each pod. null: inference.sglang.gpus_per_engine over its nodes for engines on CUDA, else 0."""

    node_selector: list[str] = field(default_factory=list)
    """Labels that a node must have, each label=value."""

    tolerations: list[str] = field(default_factory=list)
    """Taints that do not keep the pods away, each key:Effect or key=value:Effect, as kubectl writes them."""

    priority_class: Text | None = None
    """PriorityClass of the pods."""

    overrides: Text | None = None
    """YAML merged into the pod template (metadata and spec): lists of named things are merged by name. Unknown fields
    are an error."""


@dataclass(frozen=True, kw_only=True)
class VolumeConfig:
    """The volume that holds run directories: ledger, weights, checkpoints."""

    claim: Text = "agentrl-runs"
    """PersistentVolumeClaim in the namespace. It is made if it is not there, belongs to no run, and stays."""

    storage_class: Text | None = None
    """StorageClass of a claim that is made. null: the cluster's default."""

    access: AccessMode = AccessMode.ReadWriteMany
    """Access mode of the claim."""

    size_gb: Count = 100
    """Size of a claim that is made, in GiB."""


@dataclass(frozen=True, kw_only=True)
class KubernetesConfig:
    namespace: Text | None = None
    """Namespace of all objects. null: that of the kubeconfig's context."""

    images: Text = "agentrl"
    """Registry and folder of the images: IMAGES/controller:VERSION, IMAGES/trainer:VERSION, IMAGES/engine:VERSION."""

    pull_secrets: list[str] = field(default_factory=list)
    """Secrets for pulling images."""

    python: Text = "python3"
    """Interpreter in the images."""

    controller: PodConfig = field(default_factory=PodConfig)
    """The controller's pod."""

    engine: PodConfig = field(default_factory=PodConfig)
    """Pods of the engines."""

    trainer: PodConfig = field(default_factory=PodConfig)
    """Pods of the trainer; the model recipe runs in one of them before step 0."""

    engine_kind: EngineKind = EngineKind.auto
    """The object that one engine is."""

    trainer_kind: TrainerKind = TrainerKind.auto
    """The object that the trainer is."""

    trainer_runtime: Text = "torch-distributed"
    """ClusterTrainingRuntime of a TrainJob."""

    gpu_resource: Text = "nvidia.com/gpu"
    """Name under which nodes offer GPUs."""

    gpu_device_class: Text = "gpu.nvidia.com"
    """DeviceClass of GPUs in a ResourceClaim."""

    gpu_sharing: GpuSharing = GpuSharing.auto
    """How trainer and swing engines share GPUs."""

    queue: Text | None = None
    """Kueue's LocalQueue for engines and trainer, which then start suspended until they are admitted. null: none."""

    volume: VolumeConfig = field(default_factory=VolumeConfig)
    """Where run directories are."""

    run_as_user: Count = 1000
    """User and group id of all processes but those in sandboxes; never root."""

    controller_restarts: CountOrZero = 6
    """Replacements of a controller pod that was killed, before the run counts as failed. Evictions and lost nodes do
    not count."""

    controller_port: Count = 8471
    """Port of the controller's API."""

    engine_port: Count = 30000
    """Port of the engines."""

    network_policy: bool = True
    """Whether pods of the run may only speak to those they must, and to DNS."""
