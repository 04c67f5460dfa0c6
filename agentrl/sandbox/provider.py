"""The `SandboxProvider` and `Sandbox` protocols: one isolated place per episode, and evidence of what happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH of commands where the image sets none."""


@dataclass(frozen=True, kw_only=True)
class Copy:
    """Files of the host that an image contains: `source` (file or folder) appears at absolute path `target`."""

    source: Path
    target: str


@dataclass(frozen=True, kw_only=True)
class Run:
    """A step of an image: a command, run as in a sandbox on what the steps before it made. It must exit with 0."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict, hash=False)
    workdir: str = "/"
    user: str | None = None


@dataclass(frozen=True, kw_only=True)
class Add:
    """A step of an image: files of the host. `owner`: user (and `:group`), by name or number; None is root."""

    copies: tuple[Copy, ...]
    owner: str | None = None


@dataclass(frozen=True, kw_only=True)
class Unpack:
    """A step of an image: the contents of a tar archive (plain, gz, bz2 or xz) in the folder `target`."""

    source: Path
    target: str = "/"


Step: TypeAlias = Run | Add | Unpack


@dataclass(frozen=True, kw_only=True)
class Image:
    """What a sandbox's file system holds at the start, on top of the read-only base."""

    copies: tuple[Copy, ...] = ()
    env: dict[str, str] = field(default_factory=dict, hash=False)
    workdir: str = "/root"
    user: str | None = None
    """User of commands that name none; None is root."""
    steps: tuple[Step, ...] = ()
    """What is built once, in order, into layers below `copies`; needs `Capabilities.build`."""
    reference: str | None = None
    """Name of a container image that holds the files, for providers that run containers; None: their default."""


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a provider can do on this machine. The rest of the protocols every provider can."""

    snapshot: bool
    """`Sandbox.snapshot`, and `create` from one."""
    build: bool
    """Images with steps."""


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
    shell_reset: bool = False
    """In a session: the shell ended before it could leave its state (killed, replaced by exec, out of time). The next
    command begins with the state from before this one."""


@dataclass(frozen=True, kw_only=True)
class CommandLimits:
    """Limits of one command beside those of its sandbox, held by the kernel (setrlimit) for each of its processes."""

    memory_mb: int | None = None
    """Address space, in MiB."""
    cpu_s: int | None = None
    """CPU time; beyond it SIGXCPU, a second later SIGKILL."""
    pids: int | None = None
    """Processes of its user in the sandbox, whoever started them. The kernel exempts a user who is the host's root."""
    file_mb: int | None = None
    """Length of a file that it writes, in MiB; beyond it SIGXFSZ."""


NO_LIMITS = CommandLimits()


@dataclass(frozen=True, kw_only=True)
class Download:
    """What a download brought."""

    num_files: int
    skipped: tuple[str, ...] = ()
    """Paths of the first things that were left out: links, devices, sockets, pipes. Relative to what was asked for."""


class Session(Protocol):
    """A shell that goes on from command to command: folder, variables, functions, aliases and options survive.

    Processes left in the background run on, as after any command; they are no jobs of the next.
    """

    @property
    def state(self) -> bytes:
        """What the next command begins with, for `Sandbox.session` of this sandbox or of one with the same files."""
        ...

    async def exec(self, command: str, *, timeout_s: float, max_output_bytes: int | None = None) -> ExecResult:
        """Run a command as `Sandbox.exec` does, in the shell that the last one left."""
        ...


class Snapshot(Protocol):
    """The files of a sandbox at one moment, sealed: `SandboxProvider.create` makes any number of sandboxes of it.

    What ran in the sandbox is not in it, nor what lay in /tests, /logs and /dev/shm.
    """

    @property
    def id(self) -> str: ...

    @property
    def leftover_processes(self) -> int:
        """Processes that ran in the sandbox meanwhile, and that sandboxes made of it will lack."""
        ...

    async def release(self) -> None:
        """Forget it; its files go when the last sandbox that stands on them is closed. Idempotent, never raises."""
        ...


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
        limits: CommandLimits = NO_LIMITS,
    ) -> ExecResult:
        """Run one command to its end: a str through `bash -c` (sh where the image has no bash), a list as it is.

        `cwd` None is the image's workdir, `user` None the image's. Waits for the process, not for the end of its
        output: a daemon that keeps stdout open does not hold the result.
        """
        ...

    def session(
        self,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        state: bytes = b"",
        limits: CommandLimits = NO_LIMITS,
    ) -> Session:
        """A bash session; nothing runs before its first command. Commands of all sessions run one after another.

        With the `state` of an earlier session it goes on from there, and `cwd` and `env` are of no account.
        `limits` hold for each command.
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

    async def download(self, path: str, target: Path, *, max_bytes: int = 64 << 20) -> Download:
        """Copy a file or folder at an absolute path inside to the host path `target`, which must not exist.

        Makes folders and regular files only, without setuid bits, owned by us. Raises FileNotFoundError where there is
        neither file nor folder, FileExistsError for a target that is there, ValueError over `max_bytes` (sizes as files
        tell them, holes included) or for too many files, OSError of either side. Then nothing of it is left out here.
        """
        ...

    async def assign(self, owner: str | None) -> None:
        """Hand it out: from now on it is this episode's, and only now its lifetime begins.

        For one that was started for nobody yet, before anything else is done with it. Raises SandboxError if it does
        not answer.
        """
        ...

    async def probe(self) -> bool:
        """Whether the sandbox still answers. Never raises; an overloaded but living sandbox answers True in time."""
        ...

    async def kill_all(self) -> int:
        """End every process that runs in it; it stays usable. Returns how many there were."""
        ...

    async def freeze(self) -> None:
        """Stop all its processes without ending them; commands in flight stop with it, and its lifetime."""
        ...

    async def thaw(self) -> None: ...

    async def snapshot(self) -> Snapshot:
        """Seal the file system as it is, in tens of milliseconds whatever its size, and go on from there.

        Processes stand still meanwhile and run on afterwards; with some running, it takes a copy of what changed, in
        time that grows with that. Commands sent meanwhile wait. A full disk does not matter. Raises SandboxError, also
        where `Capabilities.snapshot` is not there.
        """
        ...

    async def close(self) -> None:
        """End every process in it and remove its files. Idempotent; never raises for a sandbox already dead."""
        ...


def unheard() -> None:
    """Nobody wants to know when a start begins."""


class SandboxProvider(Protocol):
    """Starts sandboxes."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def room(self) -> int:
        """Further sandboxes that could be started now: within its own limit, and within what the machine has free."""
        ...

    async def prepare(self, image: Image) -> None:
        """Build the steps of an image, if that has not been done; `create` then finds them. Without steps: nothing.

        Raises ImageError when a step fails, SandboxError when the machine does.
        """
        ...

    async def create(
        self, spec: SandboxSpec, *, snapshot: Snapshot | None = None, on_begin: Callable[[], None] = unheard
    ) -> Sandbox:
        """Start one and wait until it answers a probe. Raises SandboxError; ImageError as `prepare` does.

        With a `snapshot` (of this provider, not yet released) its files are those of the snapshot, and nothing of the
        image is copied again; the image's environment, workdir and user hold for commands as always. Forking is
        this, once per child: each has an owner of its own.

        Where it is full, it waits until there is a place, first come first served, for as long as that takes: time
        limits count from when the start itself begins, and then `on_begin` is called.
        """
        ...

    async def close(self) -> None:
        """Close every sandbox that is still open, and release every snapshot."""
        ...
