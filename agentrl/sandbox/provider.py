"""The `SandboxProvider` and `Sandbox` protocols: one isolated place per episode, and evidence of what happened."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH of commands where the image sets none."""


@dataclass(frozen=True, kw_only=True)
class Copy:
    """Files of the host that an image contains: `source` (file or folder) appears at absolute path `target`."""

    source: Path
    target: str


@dataclass(frozen=True, kw_only=True)
class Image:
    """What a sandbox's file system holds at the start, on top of the read-only base."""

    copies: tuple[Copy, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/root"


@dataclass(frozen=True, kw_only=True)
class SandboxSpec:
    """What to start. Limits of None take the provider's configured default."""

    image: Image
    memory_mb: int | None = None
    disk_mb: int | None = None
    cpus: float | None = None
    owner: str | None = None
    """Id of the episode it is for, for names, labels and logs; None: nobody's yet, or not an episode's."""


@dataclass(frozen=True, kw_only=True)
class ExecResult:
    """What one command did. Nothing here is ever invented: an exit code that was not seen is None."""

    exit_code: int | None
    """None if it ended by a signal, timed out, or was lost."""
    signal: int | None
    """The signal that ended it, if one did."""
    stdout: bytes
    stderr: bytes
    """Each capped; see `truncated`. On a timeout, what was printed until then."""
    timed_out: bool = False
    """The wall-time limit passed; everything that the command started was killed."""
    oom: bool = False
    """The sandbox's memory limit killed a process while the command ran."""
    truncated: bool = False
    """stdout or stderr was longer than the cap."""
    bytes_total: int = 0
    """Bytes printed, kept or not."""
    leftover_processes: int = 0
    """Processes that the command started and that outlived it; they were left running unless it timed out."""
    duration_s: float = 0.0


class Sandbox(Protocol):
    """One running sandbox. A broken transport or a dead sandbox raises SandboxError; a command's failure does not."""

    @property
    def id(self) -> str: ...

    async def exec(
        self,
        command: str | list[str],
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        stdin: bytes | None = None,
        timeout_s: float,
        max_output_bytes: int | None = None,
    ) -> ExecResult:
        """Run one command to its end: a str through `bash -c` (sh where the image has no bash), a list as it is.

        `cwd` None is the image's workdir. Waits for the process, not for the end of its output: a daemon that keeps
        stdout open does not hold the result.
        """
        ...

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Create or replace a file at an absolute path, with its parent folders."""
        ...

    async def upload(self, source: Path, target: str) -> None:
        """Copy a host file or folder to an absolute path inside, with permissions."""
        ...

    async def clear(self, path: str, *, mode: int = 0o755) -> None:
        """Make an absolute path an empty folder, whatever was there. Links are removed, not followed."""
        ...

    async def read(self, path: str, *, max_bytes: int = 1 << 20) -> bytes | None:
        """Contents of a regular file, or None if it is not there. Larger than `max_bytes` raises ValueError."""
        ...

    async def probe(self) -> bool:
        """Whether the sandbox still answers. Never raises; an overloaded but living sandbox answers True in time."""
        ...

    async def kill_all(self) -> int:
        """End every process that runs in it; it stays usable. Returns how many there were."""
        ...

    async def freeze(self) -> None:
        """Stop all its processes without ending them; commands in flight stop with it."""
        ...

    async def thaw(self) -> None: ...

    async def close(self) -> None:
        """End every process in it and remove its files. Idempotent; never raises for a sandbox already dead."""
        ...


class SandboxProvider(Protocol):
    """Starts sandboxes."""

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Start one and wait until it answers a probe. Raises SandboxError."""
        ...

    async def close(self) -> None:
        """Close every sandbox that is still open."""
        ...
