"""What a kubelet needs of whatever runs its containers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .errors import Object


class CannotStart(Exception):
    """A container's process could not be started; the text is the container runtime's."""


@dataclass(frozen=True)
class Mount:
    """A folder or file of the host in a container."""

    source: Path
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Disk:
    """What a container with processes has of the host's disk."""

    mounts: tuple[Mount, ...]
    log: Path
    termination_log: Path
    hosts: Path


@dataclass(frozen=True)
class ContainerPlan:
    """A container that is about to start: everything is looked up. ``disk`` is None where there are no processes."""

    pod: Object
    spec: Object
    env: Mapping[str, str]
    disk: Disk | None


class Stdin(Protocol):
    """The end of a pipe that a command reads from."""

    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None: ...

    def close(self) -> None: ...


class Process(Protocol):
    """A command that is executed in a container: three pipes and an exit code."""

    @property
    def stdin(self) -> Stdin | None: ...

    @property
    def stdout(self) -> asyncio.StreamReader: ...

    @property
    def stderr(self) -> asyncio.StreamReader: ...

    async def wait(self) -> int: ...


class Container(Protocol):
    """A container that runs."""

    async def wait(self) -> int:
        """Its exit code: 128 and the signal, if one killed it."""
        ...

    def terminate(self) -> None:
        """SIGTERM to its first process."""
        ...

    def kill(self, exit_code: int = 137) -> None:
        """SIGKILL to all its processes; ``exit_code`` is what is said of it where there are no processes."""
        ...

    async def execute(self, command: list[str], *, stdin: bool) -> Process:
        """Start a command in it.

        Raises:
            CannotStart: there is no such command.
        """
        ...


class Runtime(Protocol):
    """Starts containers. Without processes there is nothing to probe: the law says when they are ready."""

    @property
    def has_processes(self) -> bool: ...

    async def start(self, plan: ContainerPlan) -> Container:
        """Raises:
        CannotStart: the command is not in the image, or the like.
        """
        ...
