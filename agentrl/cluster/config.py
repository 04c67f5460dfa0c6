"""Where the processes of a run live."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from agentrl.bounds import NonNegative, Text
from agentrl.cluster.kubernetes.config import KubernetesConfig


class ClusterBackend(Enum):
    """Where processes run."""

    local = "local"
    """Child processes on this machine."""
    kubernetes = "kubernetes"
    """Pods: see cluster.kubernetes."""


class ControllerPlace(Enum):
    """Where the controller runs when backend is kubernetes."""

    cluster = "cluster"
    """In a pod of its own: it outlives the terminal that launched it."""
    local = "local"
    """In this terminal, with engines and trainer beside it; only sandboxes are in the cluster. For development."""


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    backend: ClusterBackend = ClusterBackend.local
    """Where processes run."""

    controller: ControllerPlace = ControllerPlace.cluster
    """Where the controller runs, with backend kubernetes. Pods cannot reach a laptop, so a local controller has its
    engines and its trainer beside it too."""

    runs_dir: Text = "runs"
    """Folder of run directories. Relative to the working directory; with Kubernetes, where pods mount the volume."""

    stop_grace_s: NonNegative = 10.0
    """Between asking a process to stop (SIGTERM) and ending it (SIGKILL)."""

    kubernetes: KubernetesConfig = field(default_factory=KubernetesConfig)
    """Objects of a run in a Kubernetes cluster; for backend kubernetes only."""
