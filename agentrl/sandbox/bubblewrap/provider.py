"""`BubblewrapProvider`: starts sandboxes on this machine through one supervisor process, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import platform
import re
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentrl.errors import ImageError, SandboxError, UserError
from agentrl.sandbox.bubblewrap import records
from agentrl.sandbox.bubblewrap.host import Host, check_host
from agentrl.sandbox.bubblewrap.layout import UNCOUNTED_MB, bwrap_argv, merged_folders, root_place
from agentrl.sandbox.bubblewrap.link import SupervisorLink, open_link
from agentrl.sandbox.bubblewrap.memory import available_bytes
from agentrl.sandbox.bubblewrap.records import reap
from agentrl.sandbox.bubblewrap.sandbox import BubblewrapSandbox
from agentrl.sandbox.bubblewrap.snapshot import BubblewrapSnapshot
from agentrl.sandbox.bubblewrap.start_files import image_files, joined, made_up_files, overlay_base
from agentrl.sandbox.bubblewrap.transfer import Upload
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
        self._stage = state_dir.resolve()
        """In the supervisor's eyes: where it puts file systems together, and no records are."""
        self._host = host or check_host()
        if self._host.no_overlay:
            logger.warning("no snapshots and no built images: %s", self._host.no_overlay)
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
        return Capabilities(snapshot=self._host.overlay, build=False)

    async def prepare(self, image: Image) -> None:
        """See `SandboxProvider.prepare`."""
        if image.steps:
            raise ImageError("this backend builds no images")

    async def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> BubblewrapSandbox:
        """Start one. Waits at most start_timeout_s for a free slot. Raises SandboxError."""
        await self.prepare(spec.image)
        timeout_s = self._config.start_timeout_s
        try:
            await asyncio.wait_for(self._slots.acquire(), timeout_s)
        except TimeoutError as error:
            raise SandboxError(f"all {self._config.max_sandboxes} sandboxes were in use for {timeout_s:g} s") from error
        self._num_starting += 1
        try:
            async with self._starts:
                sandbox = await self._start(spec, snapshot)
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

    async def _start(self, spec: SandboxSpec, snapshot: Snapshot | None) -> BubblewrapSandbox:
        try:
            upload = await asyncio.to_thread(self._files, spec.image, snapshot is not None)
        except (OSError, ValueError) as error:
            raise SandboxError(f"an image's files cannot be read: {error}") from error
        link = await self._supervisor()
        if snapshot is not None and not (isinstance(snapshot, BubblewrapSnapshot) and snapshot.held_by(link)):
            raise SandboxError(f"snapshot {snapshot.id} was released, or went with its supervisor or provider")
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
                argv=bwrap_argv(
                    self._host.bwrap,
                    disk_bytes=disk_mb << 20,
                    seccomp=config.seccomp,
                    root=root_place() if self._host.overlay else None,
                ),
                root=self._root(disk_mb, snapshot),
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

    def _files(self, image: Image, from_snapshot: bool) -> Upload:
        """What is put into a sandbox when it is up; the rest is in its layers. Raises OSError, ValueError."""
        if from_snapshot:
            image = replace(image, copies=())
        files = image_files(image)
        return files if self._host.overlay else joined([made_up_files(with_agent=self._host.ids.ranged), files])

    def _root(self, disk_mb: int, snapshot: Snapshot | None) -> dict[str, Any] | None:
        """Which layers the supervisor puts together; None where bwrap makes the files."""
        if not self._host.overlay:
            return None
        return {
            "layers": [],
            "snapshot": None if snapshot is None else snapshot.id,
            "disk_bytes": disk_mb << 20,
            "writable_system": False,
        }

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
                self._stage.mkdir(parents=True, exist_ok=True)
                self._link, greeting = await open_link(self._settings(name))
                self._record = records.write(self._state_dir, name, self._link.pid, greeting["bases"])
                self._limits_by = _LIMITS_BY[greeting["version"]]
                if self._limits_by == "rlimits":
                    logger.warning("no writable cgroups: memory is limited per process only, and OOM is not seen")
                if self._host.overlay:
                    await self._make_base(self._link)
            return self._link

    def _settings(self, name: str) -> dict[str, Any]:
        """What a supervisor is told of this machine; `name` is that of its control groups."""
        host = self._host
        return {
            "base_name": name if host.cgroups else "",
            "standing": host.standing,
            "ids": [host.ids.first, host.ids.count],
            "stage": str(self._stage) if host.overlay else None,
            "place": root_place(),
            "merged": merged_folders() or (),
        }

    async def _make_base(self, link: SupervisorLink) -> None:
        try:
            base = await asyncio.to_thread(overlay_base, with_agent=self._host.ids.ranged)
        except OSError as error:
            raise SandboxError(f"the host's public files cannot be read: {error}") from error
        await link.request("base", base.content, entries=base.entries)

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
