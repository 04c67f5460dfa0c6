"""Where the processes of a run live."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from agentrl.bounds import NonNegative, Text


class ClusterBackend(Enum):
    """Where processes run."""

    local = "local"
    """Child processes on this machine."""


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    backend: ClusterBackend = ClusterBackend.local
    """Where processes run."""

    runs_dir: Text = "runs"
    """Folder of run directories. Relative to the working directory."""

    stop_grace_s: NonNegative = 10.0
    """Between asking a process to stop (SIGTERM) and ending it (SIGKILL)."""
