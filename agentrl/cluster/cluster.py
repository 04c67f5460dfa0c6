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


class Process(Protocol):
    """A started process, with all its children."""

    @property
    def pid(self) -> int: ...

    async def wait(self) -> int:
        """Exit code; negative for a signal."""
        ...

    async def stop(self, grace_s: float) -> int:
        """Ask it to end, and after `grace_s` end it. Returns the exit code."""
        ...


class Cluster(Protocol):
    """Starts processes that end when the controller does, however it ends."""

    async def start(self, spec: ProcessSpec) -> Process: ...

    async def close(self, grace_s: float) -> None:
        """Stop everything that still runs."""
        ...
