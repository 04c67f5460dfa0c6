"""The `Cluster` protocol: where the processes of a run live."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """One process to start."""

    role: str
    """engine-0, trainer, model: unique among the processes that run at the same time."""
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    """Added to the environment of the controller."""
    log: Path
    """Its stdout and stderr are appended here."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """What whoever writes a process's arguments must know of where the cluster will start it."""

    python: str
    """agentrl's own interpreter there."""
    sglang_python: str | None
    """The one that SGLang is installed for; None: the configured one."""
    host: str
    """Address that a server listens on."""
    port: int
    """Port that it listens on; 0: any free one."""
    own_gpus: bool
    """Whether a process sees no GPUs but its own."""


class Process(Protocol):
    """A started process, with all its children."""

    @property
    def address(self) -> str | None:
        """Host at which its server is reached, as it stands in a URL; None while it is not known."""
        ...

    async def wait(self) -> int:
        """Exit code; negative for a signal."""
        ...

    async def stop(self, grace_s: float) -> int:
        """Ask it to end, and after `grace_s` end it. Returns the exit code."""
        ...


class Cluster(Protocol):
    """Starts processes that end when the controller does, however it ends."""

    def place(self, role: str) -> Place:
        """Where processes of this role are started."""
        ...

    def torchrun(self, world_size: int) -> list[str]:
        """Arguments of torchrun for so many ranks."""
        ...

    async def start(self, spec: ProcessSpec) -> Process: ...

    async def close(self, grace_s: float) -> None:
        """Stop everything that still runs."""
        ...
