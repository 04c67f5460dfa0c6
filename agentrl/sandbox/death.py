"""How a sandbox ended, as its provider saw it: the evidence that tells the agent's doing from the machine's."""

from __future__ import annotations

from enum import StrEnum


class Death(StrEnum):
    """Why a sandbox answers no more; a closed set that every provider speaks. Attribute `death` of a SandboxError."""

    OUT_OF_MEMORY = "out_of_memory"
    """Its own memory limit killed its first process (Kubernetes: the container's OOMKilled). The agent's doing."""
    OUT_OF_DISK = "out_of_disk"
    """Its own disk limit took it away (Kubernetes: evicted beyond its limit of ephemeral storage; elsewhere a full disk
    is the command's own error). The agent's doing."""
    ENDED_INSIDE = "ended_inside"
    """Its first process ended by itself or at a signal from inside (Kubernetes: Completed, Error). The agent's doing;
    bubblewrap's kernel refuses such signals, so there it cannot happen."""
    KILLED = "killed"
    """A signal from outside ended it."""
    EXPIRED = "expired"
    """It outlived `sandbox.lifetime_s`, the safety net."""
    EVICTED = "evicted"
    """The cluster took it away: evicted, preempted, deleted."""
    NODE_LOST = "node_lost"
    """The machine that it ran on is gone or not ready."""
    UNREACHABLE = "unreachable"
    """Its transport broke, or whoever holds it ended: supervisor, API server, kubelet."""
    SILENT = "silent"
    """It is still there and answered no probe."""
    IMAGE = "image"
    """Its image could not be had: pull or build failed."""

    @property
    def by_agent(self) -> bool:
        """Whether only what ran inside can have caused it."""
        return self in (Death.OUT_OF_MEMORY, Death.OUT_OF_DISK, Death.ENDED_INSIDE)
