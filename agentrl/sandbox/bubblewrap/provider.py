"""`BubblewrapProvider`: starts sandboxes on this machine through one supervisor process, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import itertools
import logging
import platform
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from agentrl.errors import ImageError, SandboxError, UserError
from agentrl.sandbox.bubblewrap.building import apply_step
from agentrl.sandbox.bubblewrap.host import Host, check_host
from agentrl.sandbox.bubblewrap.images import ImageStore, cache_folder
from agentrl.sandbox.bubblewrap.layout import UNCOUNTED_MB, bwrap_argv, root_place
from agentrl.sandbox.bubblewrap.link import SupervisorLink
from agentrl.sandbox.bubblewrap.memory import available_bytes
from agentrl.sandbox.bubblewrap.records import reap
from agentrl.sandbox.bubblewrap.run_images import RunImages, cannot_hold_layers
from agentrl.sandbox.bubblewrap.sandbox import BubblewrapSandbox
from agentrl.sandbox.bubblewrap.snapshot import BubblewrapSnapshot
from agentrl.sandbox.bubblewrap.start_files import image_files, joined, made_up_files
from agentrl.sandbox.bubblewrap.supervision import Supervision
from agentrl.sandbox.bubblewrap.transfer import Upload
from agentrl.sandbox.config import SandboxConfig
from agentrl.sandbox.provider import Capabilities, Image, Run, SandboxSpec, Snapshot, Step, unheard
from agentrl.sandbox.supervisor import seccomp
from agentrl.sandbox.supervisor.userns import Standing

_NOT_IN_NAMES = re.compile(r"[^\w.-]")
_NAME_CHARS = 64

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
        self._host = host or check_host()
        if self._host.no_overlay:
            logger.warning("no snapshots and no built images: %s", self._host.no_overlay)
        cache = cache_folder(config.cache_dir)
        self._supervision = Supervision(self._host, state_dir, cache)
        self._images = ImageStore(
            cache,
            self._host.ids,
            limit_bytes=config.cache_mb << 20,
            network=config.build_network,
            build=self._build,
            discard=self._discard,
        )
        self._run_images = RunImages(self._host.ids, network=config.build_network, build=self._build_in_run)
        self._caches: asyncio.Task[bool] | None = None
        """Whether the cache can hold layers; None before that is asked."""
        self._starts = asyncio.Semaphore(config.start_concurrency)
        self._slots = asyncio.Semaphore(config.max_sandboxes)
        self._names = itertools.count(1)
        self._open: set[str] = set()
        self._said_no_cpus = False
        self._num_starting = 0

    @property
    def limits_by(self) -> str | None:
        """What holds memory and processes: cgroup2, cgroup1, or rlimits (per process, so weaker). None before the
        first sandbox."""
        return self._supervision.limits_by

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
        return Capabilities(snapshot=self._host.overlay, build=self._host.overlay)

    async def prepare(self, image: Image) -> None:
        """See `SandboxProvider.prepare`."""
        if image.steps:
            if not self._host.overlay:
                raise ImageError(f"this machine can build no images: {self._host.no_overlay}")
            await self._image(image.steps)

    async def create(
        self, spec: SandboxSpec, *, snapshot: Snapshot | None = None, on_begin: Callable[[], None] = unheard
    ) -> BubblewrapSandbox:
        """Start one, when a slot is free. Raises SandboxError, ImageError."""
        await self.prepare(spec.image)
        await self._slots.acquire()
        self._num_starting += 1
        try:
            async with self._starts:
                on_begin()
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
        await self._supervision.close()
        self._images.close()
        self._open.clear()

    async def _start(self, spec: SandboxSpec, snapshot: Snapshot | None) -> BubblewrapSandbox:
        try:
            upload = await self._files(spec.image, from_snapshot=snapshot is not None)
        except (OSError, ValueError) as error:
            raise SandboxError(f"an image's files cannot be read: {error}") from error
        link = await self._supervision.link()
        layers: tuple[str, ...] = ()
        if spec.image.steps and snapshot is None:
            layers, snapshot = await self._image(spec.image.steps)
        if snapshot is not None and not (isinstance(snapshot, BubblewrapSnapshot) and snapshot.held_by(link)):
            raise SandboxError(f"snapshot {snapshot.id} was released, or went with its supervisor or provider")
        config, image = self._config, spec.image
        writable = config.writable_system
        return await self._start_box(
            link,
            spec,
            upload,
            memory_mb=_least(spec.memory_mb, config.memory_mb),
            disk_mb=_least(spec.disk_mb, config.disk_mb),
            layers=layers,
            snapshot=None if snapshot is None else snapshot.id,
            writable_system=any(isinstance(step, Run) for step in image.steps) if writable is None else writable,
        )

    async def _start_box(
        self,
        link: SupervisorLink,
        spec: SandboxSpec,
        upload: Upload,
        *,
        memory_mb: int,
        disk_mb: int,
        layers: tuple[str, ...] = (),
        snapshot: str | None = None,
        writable_system: bool = False,
        network: bool = False,
    ) -> BubblewrapSandbox:
        """One that has answered. `layers` or `snapshot` is what it stands on. Raises SandboxError."""
        config, overlay = self._config, self._host.overlay
        box_id = f"{next(self._names)}-{_NOT_IN_NAMES.sub('_', spec.owner or 'box')[:_NAME_CHARS]}"
        sandbox = BubblewrapSandbox(
            link,
            box_id,
            spec.image,
            output_limit_bytes=config.output_limit_bytes,
            on_closed=lambda: self._release(box_id),
        )
        root = {
            "layers": layers,
            "snapshot": snapshot,
            "disk_bytes": disk_mb << 20,
            "writable_system": writable_system,
        }
        try:
            await link.request(
                "start",
                upload.content,
                entries=upload.entries,
                box=box_id,
                argv=bwrap_argv(
                    self._host.bwrap,
                    disk_bytes=disk_mb << 20,
                    seccomp=config.seccomp,
                    root=root_place() if overlay else None,
                    network=network,
                ),
                root=root if overlay else None,
                memory_bytes=memory_mb + disk_mb + UNCOUNTED_MB << 20,
                pids=config.pids,
                seccomp=config.seccomp,
                cpus=self._cpus(spec),
                timeout_s=config.start_timeout_s,
                lifetime_s=config.lifetime_s,
            )
        except BaseException as error:
            await asyncio.shield(sandbox.close())
            if isinstance(error, OSError):
                raise SandboxError(f"sandbox {box_id} did not start: {error}") from error
            raise
        return sandbox

    async def _image(self, steps: tuple[Step, ...]) -> tuple[tuple[str, ...], BubblewrapSnapshot | None]:
        """The layers of an image, or a snapshot where the cache can hold none. Raises ImageError, SandboxError."""
        if self._caches is None:
            self._caches = asyncio.create_task(self._try_cache())
        if await asyncio.shield(self._caches):
            return await self._images.layers(steps), None
        return (), await self._run_images.snapshot(steps, await self._supervision.link())

    async def _try_cache(self) -> bool:
        """Whether it can hold layers; if not, that is said once. Raises SandboxError."""
        folder = await self._images.folder()
        as_root = self._host.standing is Standing.ROOT
        problem = await asyncio.to_thread(cannot_hold_layers, folder, as_root=as_root)
        if problem is not None:
            logger.warning("images are built anew in each run: %s can hold no layers (%s)", folder, problem)
        return problem is None

    async def _build(self, step: Step, below: tuple[str, ...], target: Path) -> None:
        """Make the layer of a step in a folder. Raises ImageError, SandboxError."""
        async with self._step_done(step, layers=below) as sandbox:
            await sandbox.export(target)

    async def _build_in_run(self, step: Step, below: BubblewrapSnapshot | None) -> BubblewrapSnapshot:
        """Do a step, and seal what it made. Raises ImageError, SandboxError."""
        async with self._step_done(step, snapshot=None if below is None else below.id) as sandbox:
            return await sandbox.snapshot()

    @asynccontextmanager
    async def _step_done(
        self, step: Step, *, layers: tuple[str, ...] = (), snapshot: str | None = None
    ) -> AsyncIterator[BubblewrapSandbox]:
        """A sandbox of its own in which the step was done, on what is below it."""
        config = self._config
        resolver = _resolver(config.build_network)
        entry = {"path": "/etc/resolv.conf", "kind": "file", "mode": 0o644, "size": len(resolver)}
        sandbox = await self._start_box(
            await self._supervision.link(),
            SandboxSpec(image=Image(workdir="/"), owner="build"),
            Upload([entry], resolver) if resolver else Upload(),
            memory_mb=config.memory_mb,
            disk_mb=config.build_disk_mb,
            layers=layers,
            snapshot=snapshot,
            writable_system=True,
            network=config.build_network,
        )
        try:
            await apply_step(sandbox, step, ranged=self._host.ids.ranged, timeout_s=config.build_timeout_s)
            await sandbox.kill_all()
            yield sandbox
        finally:
            await asyncio.shield(sandbox.close())

    async def _discard(self, folder: Path) -> None:
        """Remove what a build left: its files may belong to the sandboxes' users."""
        await (await self._supervision.link()).request("discard", folder=str(folder))

    async def _files(self, image: Image, *, from_snapshot: bool) -> Upload:
        """What is put into a sandbox when it is up; the rest is in its layers. Raises OSError, ValueError."""
        if from_snapshot or not image.copies:
            files = image_files(replace(image, copies=()))
        else:
            files = await asyncio.to_thread(image_files, image)
        return files if self._host.overlay else joined([made_up_files(with_agent=self._host.ids.ranged), files])

    def _cpus(self, spec: SandboxSpec) -> float | None:
        """CPU time by the second; None for no limit. Says so, once, where nothing holds one."""
        cpus = min((share for share in (spec.cpus, self._config.cpus) if share is not None), default=None)
        if cpus is not None and not self._supervision.limits_cpu and not self._said_no_cpus:
            self._said_no_cpus = True
            logger.warning("no writable cpu cgroup: sandboxes are not held to %g CPUs", cpus)
        return cpus

    def _release(self, box_id: str) -> None:
        """A sandbox was closed: its slot is free."""
        if box_id in self._open:
            self._open.remove(box_id)
            self._slots.release()


def _least(asked: int | None, ceiling: int) -> int:
    """What a task gets: what it asks for, at most what the configuration allows."""
    return ceiling if asked is None else min(asked, ceiling)


def _resolver(network: bool) -> bytes:
    """The host's name servers, for a build that has its network."""
    try:
        return Path("/etc/resolv.conf").read_bytes() if network else b""
    except OSError:
        return b""
