"""Configuration of the sandboxes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from agentrl.bounds import Count, CountOrZero, Positive, Seconds
from agentrl.sandbox.pods.config import PodConfig


class SandboxBackend(Enum):
    """What isolates an episode."""

    bubblewrap = "bubblewrap"
    """Linux namespaces on this machine (bwrap): own pids, no network, no host files but a read-only base."""

    kubernetes = "kubernetes"
    """Pods of a Kubernetes cluster, of the tasks' own container images."""

    agent_sandbox = "agent_sandbox"
    """Claims of agent-sandbox (agents.x-k8s.io), which keeps the pods warm."""

    @property
    def runs_containers(self) -> bool:
        """Whether a task's container image is what its sandbox holds."""
        return self in (SandboxBackend.kubernetes, SandboxBackend.agent_sandbox)


class Isolation(Enum):
    """What is between an episode and the machine that it runs on."""

    namespaces = "namespaces"
    """What the backend makes of namespaces: own files, processes, network, limits."""

    none = "none"
    """Nothing: commands of the model run on this machine, with our rights, one episode at a time. Only for a machine
    that is itself thrown away and refuses namespaces, such as a container of a CI service."""


@dataclass(frozen=True, kw_only=True)
class SandboxConfig:
    backend: SandboxBackend = SandboxBackend.bubblewrap
    """Provider of sandboxes."""

    isolation: Isolation = Isolation.namespaces
    """What holds episodes apart, and from the machine. `sandbox=bare` sets none, and what goes with it."""

    max_sandboxes: Count = 64
    """Sandboxes alive at once."""

    start_concurrency: Count = 4
    """Sandboxes starting at once; more only fight for the CPU."""

    start_timeout_s: Seconds = 30.0
    """Until a sandbox must answer its first probe; later is an infrastructure failure. Counts from when its start
    begins, not while it waits for a place."""

    warm_max: CountOrZero = 16
    """Sandboxes that are started before they are asked for, at most; 0 starts each when it is. They count as
    max_sandboxes, and are only started where the machine has free what they may use."""

    warm_idle_s: Seconds = 600.0
    """A sandbox that nobody asked for in this time is closed. Must stay below lifetime_s."""

    memory_mb: Count = 512
    """Memory of all processes of one sandbox, in MiB, where the task does not ask for less."""

    seccomp: bool = True
    """Whether a system call filter stands before the kernel: no mounts, namespaces, tracing, key rings, bpf or io_uring
    inside. strace and gdb need it off."""

    pids: Count = 128
    """Processes and threads of one sandbox."""

    cpus: Positive | None = None
    """CPU time of one sandbox by the second, such as 0.5, where the task does not ask for less. null: what the
    machine's scheduler gives it."""

    disk_mb: Count = 128
    """Writable space of one sandbox, in MiB (a sized tmpfs; counts as memory)."""

    writable_system: bool | None = None
    """Whether commands may change /usr, and so the programs that the verifier runs. null: where the image's own steps
    run commands, because its task then expects a system of its own; elsewhere /usr is read-only."""

    cache_dir: str | None = None
    """Folder of built image layers, shared by all runs. null: agentrl in the user's cache folder."""

    cache_mb: Count = 20480
    """What the built layers may take, in MiB. Beyond it those go that no process uses, the least recently used
    first."""

    build_network: bool = False
    """Whether commands that build images have this machine's network, its own services included. Never while an agent
    acts."""

    build_timeout_s: Seconds = 600.0
    """Wall time of one step of an image. Must stay below lifetime_s."""

    build_disk_mb: Count = 1024
    """What one step of an image may write, in MiB (a sized tmpfs; counts as memory)."""

    fork_groups: bool = False
    """The members of a group start as forks of its first one's sandbox: what the task's files take to set up is spent
    once a group. The others wait for the first, and warm sandboxes serve only it."""

    snapshot_every_turns: CountOrZero = 0
    """An episode's files are sealed after every so many turns, so that after an infrastructure failure it goes on from
    there. Worth it where turns are dear: each costs tens of milliseconds and keeps what changed, in memory: after a
    restart of the controller it starts anew all the same. 0: it always does."""

    output_limit_bytes: Count = 65536
    """Bytes of stdout, and of stderr, that one exec keeps; the rest is counted and dropped."""

    lifetime_s: Seconds = 1800.0
    """A sandbox that was handed out longer ago than this is closed, as a safety net; while it is frozen this stands
    still. Must exceed the episode deadline."""

    kubernetes: PodConfig = field(default_factory=PodConfig)
    """Pods of the backends kubernetes and agent_sandbox."""
