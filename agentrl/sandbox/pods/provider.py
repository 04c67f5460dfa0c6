"""`PodProvider`: sandboxes that are plain pods of a Kubernetes cluster."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from agentrl.errors import ImageError, SandboxError, UserError
from agentrl.kubernetes.errors import KubernetesError
from agentrl.kubernetes.limits import pause_s
from agentrl.kubernetes.names import object_name
from agentrl.kubernetes.resources import PODS
from agentrl.sandbox.bubblewrap.start_files import joined
from agentrl.sandbox.bubblewrap.transfer import Upload, pack
from agentrl.sandbox.config import SandboxConfig
from agentrl.sandbox.death import Death
from agentrl.sandbox.owner import SandboxOwner
from agentrl.sandbox.pods.calls import CallError, Calls
from agentrl.sandbox.pods.cluster import GONE_TIMEOUT_S, PodCluster
from agentrl.sandbox.pods.config import PodSnapshots
from agentrl.sandbox.pods.evidence import PodEnd, obstacle, running, waiting_for
from agentrl.sandbox.pods.pod import image_of, pod
from agentrl.sandbox.pods.sandbox import PodPlace, PodSandbox
from agentrl.sandbox.pods.snapshot import PodSnapshot
from agentrl.sandbox.pods.views import PodView
from agentrl.sandbox.provider import Capabilities, Image, SandboxSpec, Snapshot, unheard

logger = logging.getLogger(__name__)


class PodProvider:
    """Implements `SandboxProvider`. Make it, use it and close it in one event loop.

    The first use connects, and deletes what earlier controllers of the run left; it raises UserError, with the fix,
    where the cluster does not let it.
    """

    def __init__(self, config: SandboxConfig, owner: SandboxOwner, *, state_dir: Path) -> None:
        self._config = config
        self._owner = owner
        self._state_dir = state_dir
        self.cluster = PodCluster(config, owner)
        self._opening: asyncio.Task[None] | None = None
        self._starts = asyncio.Semaphore(config.start_concurrency)
        self._slots = asyncio.Semaphore(config.max_sandboxes)
        self._num_taken = 0
        self._numbers = itertools.count(1)
        self._known_users: dict[str, set[str]] = {}
        """By container image."""
        self._ending: dict[str, asyncio.Task[None]] = {}
        """Pods that were deleted, until they are gone."""
        self._closed = False

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(snapshot=self._config.kubernetes.snapshots is not PodSnapshots.none, build=False)

    @property
    def room(self) -> int:
        """See `SandboxProvider.room`. What the nodes have free only the scheduler knows."""
        return self._config.max_sandboxes - self._num_taken

    async def prepare(self, image: Image) -> None:
        """See `SandboxProvider.prepare`: nothing is built here."""
        if image.steps:
            raise ImageError("its image has to be built", hint="`agentrl tasks images` builds images for clusters")

    async def create(
        self, spec: SandboxSpec, *, snapshot: Snapshot | None = None, on_begin: Callable[[], None] = unheard
    ) -> PodSandbox:
        """Start one, when a slot is free. Raises SandboxError, ImageError; UserError for what a person must mend."""
        await self.prepare(spec.image)
        if snapshot is not None and not (isinstance(snapshot, PodSnapshot) and not snapshot.released):
            raise SandboxError(f"snapshot {snapshot.id} was released, or is another provider's")
        await self._slots.acquire()
        self._num_taken += 1
        try:
            await self._starts.acquire()
        except BaseException:
            self._release()
            raise
        try:
            return await self._start(spec, snapshot, on_begin)
        finally:
            self._starts.release()

    async def close(self) -> None:
        """See `SandboxProvider.close`: nothing of this controller's life is left in the cluster."""
        self._closed = True
        if self._opening is not None:
            await asyncio.wait({self._opening})
        self.cluster.views.end_all(PodEnd(None, "is closed, with its provider"))
        for task in list(self._ending.values()):
            task.cancel()
        await self.cluster.close()

    async def _start(self, spec: SandboxSpec, snapshot: PodSnapshot | None, on_begin: Callable[[], None]) -> PodSandbox:
        """In a slot that is given back when no pod has it. Raises as `create` does."""
        try:
            await self._open()
            view = await self._make(spec, on_begin)
        except BaseException:
            self._release()
            raise
        try:
            return await self._come_up(view, spec, snapshot)
        except BaseException:
            await asyncio.shield(self._end(view))
            raise

    # --- what another kind of pod does in its own way

    async def _connect(self) -> None:
        """Raises UserError, KubernetesError."""
        await self.cluster.open()

    async def _make(self, spec: SandboxSpec, on_begin: Callable[[], None]) -> PodView:
        """Have a pod made. Raises SandboxError, UserError, and has left none then."""
        number = f"sb-{next(self._numbers)}"
        name = object_name(self._owner.run, self._owner.epoch, number)
        view = self.cluster.view(name)
        try:
            await self.cluster.create(PODS, pod(spec, self._config, self._owner, name=name, token=secrets.token_hex(8)))
        except BaseException:
            await asyncio.shield(self._unmake(view))
            raise
        on_begin()
        return view

    async def _delete(self, view: PodView) -> bool:
        """Have it deleted; False if there was none. Raises SandboxError."""
        return await self.cluster.delete(PODS, view.name)

    # ---

    async def _open(self) -> None:
        """Connect, once; who comes meanwhile waits. A failure is told to all, and tried again by the next."""
        if self._closed:
            raise SandboxError("the sandbox provider is closed")
        if self._opening is None:
            self._opening = asyncio.create_task(self._connect())
        opening = self._opening
        try:
            await asyncio.shield(opening)
        except KubernetesError as error:
            self._opening = None
            if isinstance(error, UserError):
                raise
            raise SandboxError(f"the cluster cannot be used: {error}") from error

    async def _come_up(self, view: PodView, spec: SandboxSpec, snapshot: PodSnapshot | None) -> PodSandbox:
        """Wait for a pod that was made, and put in what belongs in it. Raises SandboxError, ImageError."""
        await self._until_running(view)
        sandbox, calls = self._sandbox(view, spec)
        try:
            found = await calls.ask("probe", within_s=self._config.start_timeout_s)
            if lacking := found.words[1:]:
                raise ImageError(f"image {image_of(spec, self._config)} has no {', '.join(lacking)}")
            await sandbox.put(await asyncio.to_thread(_files, spec.image, copies=snapshot is None))
            if snapshot is not None:
                await sandbox.restore(snapshot)
        except CallError as error:
            end = view.end or PodEnd(Death.UNREACHABLE, str(error))
            raise SandboxError(f"sandbox {view.name} did not start: {end.text}", death=end.death) from error
        except SandboxError:
            raise
        except OSError as error:
            raise SandboxError(f"sandbox {view.name} did not start: {error}") from error
        if spec.owner is not None:
            sandbox.begin_lifetime()
        return sandbox

    async def _until_running(self, view: PodView) -> None:
        def settled(view: PodView) -> bool:
            pod = view.object
            return view.end is not None or (pod is not None and (running(pod) or obstacle(pod) is not None))

        up = await view.until(settled, within_s=self._config.start_timeout_s)
        found = view.object
        if up and view.end is None and found is not None and running(found):
            return
        end = (None if found is None else obstacle(found)) or view.end
        if end is None:
            waited = f"not up after {self._config.start_timeout_s:g} s: {waiting_for(found)}"
            end = PodEnd(None, f"{waited} {await self.cluster.warnings(view)}".rstrip())
        raise SandboxError(f"sandbox {view.name} did not start: {end.text}", death=end.death)

    def _sandbox(self, view: PodView, spec: SandboxSpec) -> tuple[PodSandbox, Calls]:
        settings = self._config.kubernetes
        calls = Calls(partial(self.cluster.open_stream, view), self.cluster.turn_on(view), entropy=self.cluster.entropy)
        with_snapshots = self.capabilities.snapshot
        place = PodPlace(
            calls=calls,
            view=view,
            image=spec.image,
            output_limit_bytes=self._config.output_limit_bytes,
            lifetime_s=self._config.lifetime_s,
            reconnect_s=settings.reconnect_s,
            snapshot_folder=self._state_dir / "snapshots" if with_snapshots else None,
            snapshot_bytes=settings.snapshot_mb << 20,
            known_users=self._known_users.setdefault(image_of(spec, self._config), set()),
            end=partial(self._end, view),
            handed_out=partial(self._hand_out, view),
        )
        return PodSandbox(place), calls

    def _hand_out(self, view: PodView, owner: str | None) -> None:
        """Raises SandboxError for a pod that is not known to run."""
        found = view.object
        if found is None or not running(found):
            raise SandboxError(f"sandbox {view.name} does not run: {waiting_for(found)}")
        if not self.cluster.up_to_date():
            raise SandboxError(f"sandbox {view.name}: the cluster has not been heard of for too long")
        self.cluster.note_episode(view, owner)

    # --- the end of one

    async def _end(self, view: PodView) -> None:
        """Have it deleted; its place is free when it is gone. Where the cluster cannot be told, that is tried on."""
        if view.name in self._ending or view.is_released:
            return
        try:
            existed = await self._delete(view)
        except SandboxError as error:
            logger.warning("%s", error)
            if view.name not in self._ending and not view.is_released:
                self._ending[view.name] = asyncio.create_task(self._delete_later(view))
            return
        if view.name in self._ending or view.is_released:
            return
        if existed and not view.is_gone:
            self._ending[view.name] = asyncio.create_task(self._until_gone(view))
        else:
            self._forget(view)

    async def _delete_later(self, view: PodView) -> None:
        existed = None
        for attempt in itertools.count():
            with suppress(SandboxError):
                existed = await self._delete(view)
            if existed is not None:
                break
            await asyncio.sleep(pause_s(attempt, self.cluster.entropy.random()))
        await self._until_gone(view)

    async def _until_gone(self, view: PodView) -> None:
        if not await view.until(lambda view: view.is_gone, within_s=GONE_TIMEOUT_S):
            logger.warning("pod %s is still there %g s after it was deleted", view.name, GONE_TIMEOUT_S)
        self._forget(view)

    async def _unmake(self, view: PodView) -> None:
        """Nothing was made, as far as is known; but an answer may have been lost. Its place is given back elsewhere."""
        with suppress(SandboxError):
            await self._delete(view)
        view.is_released = True
        self.cluster.views.forget(view.name)

    def _forget(self, view: PodView) -> None:
        self._ending.pop(view.name, None)
        self.cluster.views.forget(view.name)
        view.is_released = True
        self._release()

    def _release(self) -> None:
        self._num_taken -= 1
        self._slots.release()


def _files(image: Image, *, copies: bool) -> Upload:
    """What is put into a pod beside its container image. Raises OSError, ValueError."""
    packed = [pack(copy.source, copy.target) for copy in image.copies] if copies else []
    folder = [{"path": image.workdir, "kind": "dir", "mode": None}] if image.workdir else []
    return joined([*packed, Upload(folder, b"")])
