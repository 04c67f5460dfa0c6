"""The cache of image layers, shared by all runs of a user: each layer is built once, whoever asks for it first.

A layer is a folder named by its key. It appears whole, by a rename, or not at all: a build that fails or is killed
leaves at most a folder `KEY.partial`, which the next build of that key removes. A file lock per key keeps two processes
from building the same layer. What the cache may take is bounded: see `layer_uses`.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from agentrl.errors import ImageError, SandboxError
from agentrl.sandbox.bubblewrap.image_keys import base_key, layer_key
from agentrl.sandbox.bubblewrap.layer_uses import LOCK, PARTIAL, LayerUses, forget_dead
from agentrl.sandbox.provider import Step
from agentrl.sandbox.supervisor.stage import LAYER_PARTS
from agentrl.sandbox.supervisor.userns import IdMap

MAX_STEPS = 40
"""Of one image: its layers and those of snapshots upon them must fit into one mount."""
_LOCK_POLL_S = 0.05

Build = Callable[[Step, tuple[str, ...], Path], Awaitable[None]]
"""(step, layers below it, top first, folder to fill). Raises ImageError, SandboxError."""
Discard = Callable[[Path], Awaitable[None]]
"""Removes a folder whose files may be the sandboxes' users'."""


logger = logging.getLogger(__name__)


def cache_folder(configured: str | None) -> Path:
    """Where image layers are kept: as configured, or in the user's cache folder."""
    if configured is not None:
        return Path(configured).expanduser().resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "agentrl").resolve()


def sweep(cache: Path) -> None:
    """Remove what builds and users left whose processes are gone; a build that goes on holds its lock."""
    for folder in cache.glob("layers/*"):
        forget_dead(folder)
    for partial in cache.glob(f"layers/*/*{PARTIAL}"):
        lock = partial.with_suffix(LOCK)
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(partial, ignore_errors=True)  # files of the users of /etc/subuid: the next build removes them
            lock.unlink()
        except BlockingIOError:
            continue
        finally:
            os.close(fd)


class ImageStore:
    """Layers of one user's images, for sandboxes with one map of ids."""

    def __init__(
        self, cache: Path, ids: IdMap, *, limit_bytes: int, network: bool, build: Build, discard: Discard
    ) -> None:
        """`limit_bytes`: what its layers may take, beyond which those go that no process uses.

        `network`: whether builds have the host's; what they fetched is kept apart from what they did without.
        """
        self._folder = cache / "layers" / f"{ids.first}-{ids.count}"
        self._ids, self._network = ids, network
        self._build, self._discard = build, discard
        self._uses = LayerUses(self._folder, limit_bytes)
        self._looked = self._said_full = False
        self._ready: dict[tuple[Step, ...], tuple[str, ...]] = {}

    def close(self) -> None:
        """Its layers are not used any more."""
        self._uses.close()

    async def folder(self) -> Path:
        """Where the layers lie, made and swept. Raises SandboxError."""
        try:
            await asyncio.to_thread(self._make_folder)
        except OSError as error:
            raise SandboxError(f"the cache of images in {self._folder}: {error}") from error
        return self._folder

    async def layers(self, steps: tuple[Step, ...]) -> tuple[str, ...]:
        """Folders of the layers that the steps make, the top one first; built if they are not there.

        Raises ImageError, SandboxError.
        """
        if steps not in self._ready:
            if len(steps) > MAX_STEPS:
                raise ImageError(f"an image of {len(steps)} steps, of which {MAX_STEPS} fit", hint="join its commands")
            try:
                self._ready[steps] = await self._all_layers(steps)
            except OSError as error:
                if isinstance(error, SandboxError):
                    raise
                raise SandboxError(f"the cache of images in {self._folder}: {error}") from error
        return self._ready[steps]

    async def _all_layers(self, steps: tuple[Step, ...]) -> tuple[str, ...]:
        await asyncio.to_thread(self._make_folder)
        key = await asyncio.to_thread(base_key, self._ids, network=self._network)
        found: tuple[str, ...] = ()
        hold_bound, self._looked = not self._looked, True
        for step in steps:
            key = await asyncio.to_thread(checked_key, key, step)
            layer = self._folder / key
            while not await asyncio.to_thread(self._uses.take, key):
                await self._make(step, found, layer)
                hold_bound = True
            found = (str(layer), *found)
        self._uses.touch(Path(layer).name for layer in found)
        if hold_bound:
            await self._hold_bound()
        return found

    async def _hold_bound(self) -> None:
        taken, too_many = await asyncio.to_thread(self._uses.take_away)
        for folder in taken:
            async with _locked(folder.with_suffix(LOCK)):
                await self._discard(folder)
        if too_many and not self._said_full:
            self._said_full = True
            logger.warning("the cache of images is %d MiB over its bound: all of it is in use", too_many >> 20)

    async def _make(self, step: Step, below: tuple[str, ...], layer: Path) -> None:
        partial = layer.with_suffix(PARTIAL)
        async with _locked(layer.with_suffix(LOCK)):
            if await asyncio.to_thread(layer.is_dir):
                return  # another was first
            if await asyncio.to_thread(partial.exists):
                await self._discard(partial)
            for folder in (partial, *(partial / part for part in LAYER_PARTS)):
                folder.mkdir()
            try:
                await self._build(step, below, partial)
                await asyncio.to_thread(self._uses.measure, layer.name, partial)
                partial.rename(layer)
            except BaseException:
                await asyncio.shield(self._discard(partial))
                raise

    def _make_folder(self) -> None:
        """Only its owner may enter: it holds what sandboxes made, setuid programs perhaps among it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.parent.chmod(0o700)
        sweep(self._folder.parents[1])


def checked_key(below: str, step: Step) -> str:
    """`layer_key`, with files that cannot be read as an ImageError."""
    try:
        return layer_key(below, step)
    except (OSError, ValueError) as error:
        raise ImageError(f"an image's files cannot be read: {error}") from error


@asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    """Hold a file lock; the file goes with it. A process that dies lets go."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            await _lock(fd)
            if _is_at(fd, path):
                try:
                    yield
                finally:
                    await asyncio.to_thread(path.unlink)
                return
        finally:
            os.close(fd)


async def _lock(fd: int) -> None:
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            await asyncio.sleep(_LOCK_POLL_S)


def _is_at(fd: int, path: Path) -> bool:
    """Whether the file that was locked still has its name: who held it before has removed it."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
