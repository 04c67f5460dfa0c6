"""Configuration of sandboxes on Kubernetes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from agentrl.bounds import Count, CountOrZero, NonNegative, Positive, Seconds, Text


class PullPolicy(Enum):
    """When a node pulls an image."""

    IfNotPresent = "IfNotPresent"
    """Where it has none of that name."""

    Always = "Always"
    """Whenever a pod starts."""

    Never = "Never"
    """Not at all: images are brought to the nodes in another way."""


class PodSnapshots(Enum):
    """What a snapshot of a pod holds."""

    none = "none"
    """There are none: what needs them is refused."""
    workdir = "workdir"
    """A tar of the working folder. Whatever an episode changes elsewhere is not in it, so only for tasks whose whole
    state lies there."""


@dataclass(frozen=True, kw_only=True)
class PodConfig:
    """Where sandbox pods run, and what they are."""

    kubeconfig: str | None = None
    """File that says how to reach the cluster. null: $KUBECONFIG, else ~/.kube/config; in a pod, its own cluster."""

    context: str | None = None
    """Context of the kubeconfig. null: its current one."""

    namespace: str | None = None
    """Namespace of the pods. null: the context's, or that of the pod that the controller runs in."""

    image: Text = "python:3.12-slim-bookworm"
    """Container image of tasks that bring none: those that only copy files, the shipped families too. It needs a shell
    and the usual small programs."""

    images: dict[str, str] = field(default_factory=dict)
    """Container image by a pattern of task names, such as {"web-*": registry/web:1}; the first that matches counts,
    before what the task itself says."""

    registry: str | None = None
    """Where `agentrl tasks images` names the images that tasks' Dockerfiles make, such as registry.example.com/rl.
    null: tasks that have only a Dockerfile cannot run."""

    run_as_user: CountOrZero | None = None
    """User id of all that runs in a pod, which then has no rights of root. null: the image's own user, mostly root,
    with the few capabilities that package managers need."""

    cpu_request: Positive = 0.25
    """CPUs that the scheduler keeps free for a sandbox; sandbox.cpus, or the task, limits it."""

    memory_request_share: NonNegative = 1.0
    """Part of a sandbox's memory limit that the scheduler keeps free for it. Below 1 nodes are overcommitted: then a
    node that is out of memory takes sandboxes away, which costs their episodes' work but never counts against the
    agent."""

    internet: bool = False
    """Whether sandboxes may reach other machines. The network plugin must enforce network policies for false to
    hold."""

    network_policy: bool = True
    """Whether to make the network policy of the sandboxes. false: something else does."""

    runtime_class: str | None = None
    """Runtime of the containers, such as gvisor or kata. null: the cluster's."""

    priority_class: str | None = None
    """Priority class of the pods. null: the cluster's default."""

    node_selector: dict[str, str] = field(default_factory=dict)
    """Labels that nodes must have."""

    tolerations: list[dict[str, Any]] = field(default_factory=list)
    """Taints of nodes that do not keep sandboxes away."""

    pull_policy: PullPolicy = PullPolicy.IfNotPresent
    """When nodes pull images."""

    pull_secrets: list[str] = field(default_factory=list)
    """Secrets with the credentials of registries."""

    overrides: dict[str, Any] = field(default_factory=dict)
    """Merged over the pod: {metadata: ..., spec: ...} as Kubernetes takes it, lists of named things by name. Unknown
    fields are refused."""

    active_deadline_s: Seconds = 14400.0
    """The cluster itself ends a sandbox after this time, warm or used, as a safety net. Must exceed
    sandbox.warm_idle_s + sandbox.lifetime_s."""

    requests_per_s: Positive = 50.0
    """Requests to the API server in the long run, creations and commands included."""

    request_burst: Count = 100
    """Requests at once."""

    exec_per_node: Count = 8
    """Commands that begin at once on one node; more only wait for each other there."""

    reconnect_s: Seconds = 60.0
    """How long an API server that does not answer is asked again before what needed it fails."""

    snapshots: PodSnapshots = PodSnapshots.none
    """What a snapshot holds."""

    snapshot_mb: Count = 256
    """Size of a snapshot at most, in MiB."""

    warm_replicas: CountOrZero = 4
    """Backend agent_sandbox: sandboxes that the cluster keeps warm for each image."""
