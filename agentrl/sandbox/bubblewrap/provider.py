"""`BubblewrapProvider`: starts sandboxes on this machine through one supervisor process, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import platform
import re
import secrets
from pathlib import Path
from typing import Any

from agentrl.errors import ImageError, SandboxError, UserError
from agentrl.sandbox.bubblewrap import records
from agentrl.sandbox.bubblewrap.host import Host, check_host
from agentrl.sandbox.bubblewrap.layout import AGENT_UID, FILES, UNCOUNTED_MB, bwrap_argv
from agentrl.sandbox.bubblewrap.link import SupervisorLink, open_link
from agentrl.sandbox.bubblewrap.memory import available_bytes
from agentrl.sandbox.bubblewrap.records import reap
from agentrl.sandbox.bubblewrap.sandbox import BubblewrapSandbox
from agentrl.sandbox.bubblewrap.transfer import Upload, pack
from agentrl.sandbox.config import SandboxConfig
from agentrl.sandbox.provider import Capabilities, Image, SandboxSpec, Snapshot
from agentrl.sandbox.supervisor import seccomp

_NOT_IN_NAMES = re.compile(r"[^\w.-]")
_NAME_CHARS = 64
_LIMITS_BY = {2: "cgroup2", 1: "cgroup1", 0: "rlimits"}

__all__ = ["BubblewrapProvider", "reap"]

logger = logging.getLogger(__name__)


class BubblewrapProvider:
    """Implements `SandboxProvider`. Make it, use it and close it in one event loop.

    `state_dir` gets a record of what was made, for `reap` after a crash. Raises UserError, with the fix, where the
    machine cannot start sandboxes.
    """

    def __init__(self, config: SandboxConfig, *, state_dir: Path, host: Host | None = None) -> None:
        """`host` None asks `check_host`; give one to use less than the machine allows."""
        if config.seccomp and not seccomp.supported():
            raise UserError(
                f"there is no system call filter for this machine ({platform.machine()}) or its kernel",
                hint="set sandbox.seccomp=false to run sandboxes without one",
            )
        self._config = config
        self._state_dir = state_dir
        self._host = host or check_host()
        self._link: SupervisorLink | None = None
        self._record: Path | None = None
        self._limits_by: str | None = None
        self._link_lock = asyncio.Lock()
        self._starts = asyncio.Semaphore(config.start_concurrency)
        self._slots = asyncio.Semaphore(config.max_sandboxes)
        self._names = itertools.count(1)
        self._open: set[str] = set()
        self._num_starting = 0
        self._closed = False

    @property
    def limits_by(self) -> str | None:
        """What holds memory and processes: cgroup2, cgroup1, or rlimits (per process, so weaker). None before the
        first sandbox."""
        return self._limits_by

    @property
    def num_open(self) -> int:
        """Sandboxes started and not yet closed."""
        return len(self._open)

    @property
    def room(self) -> int:
        """See `SandboxProvider.room`. The machine must have free what a sandbox may use at most."""
        slots = self._config.max_sandboxes - len(self._open) - self._num_starting
        most_mb = self._config.memory_mb + self._config.disk_mb + UNCOUNTED_MB
        return max(min(slots, available_bytes() // (most_mb << 20)), 0)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(snapshot=False, build=False)

    async def prepare(self, image: Image) -> None:
        """See `SandboxProvider.prepare`."""
        if image.steps:
            raise ImageError("this backend builds no images")

    async def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> BubblewrapSandbox:
        """Start one. Waits at most start_timeout_s for a free slot. Raises SandboxError."""
        await self.prepare(spec.image)
        if snapshot is not None:
            raise SandboxError(f"snapshot {snapshot.id} is another provider's")
        timeout_s = self._config.start_timeout_s
        try:
            await asyncio.wait_for(self._slots.acquire(), timeout_s)
        except TimeoutError as error:
            raise SandboxError(f"all {self._config.max_sandboxes} sandboxes were in use for {timeout_s:g} s") from error
        self._num_starting += 1
        try:
            async with self._starts:
                sandbox = await self._start(spec)
        except BaseException:
            self._slots.release()
            raise
        finally:
            self._num_starting -= 1
        self._open.add(sandbox.id)
        return sandbox

    async def close(self) -> None:
        """Close every sandbox that is still open, and the supervisor. Idempotent."""
        self._closed = True
        async with self._link_lock:
            await self._end_supervisor()
            self._open.clear()

    async def _start(self, spec: SandboxSpec) -> BubblewrapSandbox:
        try:
            upload = await asyncio.to_thread(_initial_files, spec.image, self._host.ids.ranged)
        except (OSError, ValueError) as error:
            raise SandboxError(f"an image's files cannot be read: {error}") from error
        link = await self._supervisor()
        config = self._config
        disk_mb = _least(spec.disk_mb, config.disk_mb)
        memory_mb = _least(spec.memory_mb, config.memory_mb) + disk_mb + UNCOUNTED_MB
        box_id = f"{next(self._names)}-{_NOT_IN_NAMES.sub('_', spec.owner or 'box')[:_NAME_CHARS]}"
        sandbox = BubblewrapSandbox(
            link,
            box_id,
            spec.image,
            output_limit_bytes=config.output_limit_bytes,
            on_closed=lambda: self._release(box_id),
        )
        try:
            await link.request(
                "start",
                box=box_id,
                argv=bwrap_argv(self._host.bwrap, disk_bytes=disk_mb << 20, seccomp=config.seccomp),
                ids=[self._host.ids.first, self._host.ids.count],
                memory_bytes=memory_mb << 20,
                pids=config.pids,
                seccomp=config.seccomp,
                cpus=spec.cpus,
                timeout_s=config.start_timeout_s,
                lifetime_s=config.lifetime_s,
            )
            await sandbox.put(upload)  # and it has answered
        except BaseException as error:
            await asyncio.shield(sandbox.close())
            if isinstance(error, OSError):
                raise SandboxError(f"sandbox {box_id} did not start: {error}") from error
            raise
        return sandbox

    async def _supervisor(self) -> SupervisorLink:
        """The running supervisor, or a new one if it has died."""
        async with self._link_lock:
            if self._closed:
                raise SandboxError("the sandbox provider is closed")
            if self._link is not None and self._link.lost:
                logger.warning("the sandboxes' supervisor ended; starting another")
                await self._end_supervisor()
            if self._link is None:
                name = f"agentrl-{os.getpid()}-{secrets.token_hex(4)}"
                self._link, greeting = await open_link(name, cgroups=self._host.cgroups)
                self._record = records.write(self._state_dir, name, self._link.pid, greeting["bases"])
                self._limits_by = _LIMITS_BY[greeting["version"]]
                if self._limits_by == "rlimits":
                    logger.warning("no writable cgroups: memory is limited per process only, and OOM is not seen")
            return self._link

    async def _end_supervisor(self) -> None:
        """It removes its control groups itself, unless it was killed."""
        if self._link is not None:
            await self._link.close()
            self._link = None
        if self._record is not None:
            for path in await asyncio.to_thread(records.remove_remains, self._record):
                logger.error("control group %s could not be removed", path)
            self._record = None

    def _release(self, box_id: str) -> None:
        """A sandbox was closed: its slot is free."""
        if box_id in self._open:
            self._open.remove(box_id)
            self._slots.release()


def _least(asked: int | None, ceiling: int) -> int:
    """What a task gets: what it asks for, at most what the configuration allows."""
    return ceiling if asked is None else min(asked, ceiling)


def _initial_files(image: Image, with_agent: bool) -> Upload:
    """The made-up files, then the image's. `with_agent`: there is a user `agent`, and it owns its home."""
    texts = {path: text.encode() for path, text in FILES.items()}
    entries: list[dict[str, Any]] = [
        {"path": path, "kind": "file", "mode": 0o644, "size": len(data)} for path, data in texts.items()
    ]
    content = b"".join(texts.values())
    if with_agent:
        entries.append({"path": "/home/agent", "kind": "dir", "mode": 0o755, "uid": AGENT_UID})
    for copy in image.copies:
        upload = pack(copy.source, copy.target)
        entries += upload.entries
        content += upload.content
    entries.append({"path": image.workdir, "kind": "dir", "mode": None})
    return Upload(entries, content)
