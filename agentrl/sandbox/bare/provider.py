"""`BareProvider`: one sandbox at a time, which is this machine itself, without any isolation."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable
from pathlib import Path

from agentrl.errors import ImageError, SandboxError
from agentrl.sandbox.bare.host import check_machine
from agentrl.sandbox.bare.places import folders_of, make, misfit
from agentrl.sandbox.bare.records import left_folders, new_record
from agentrl.sandbox.bare.sandbox import BareSandbox
from agentrl.sandbox.bubblewrap.link import SupervisorLink, open_link
from agentrl.sandbox.bubblewrap.start_files import image_files
from agentrl.sandbox.config import SandboxConfig
from agentrl.sandbox.provider import Capabilities, Image, SandboxSpec, Snapshot, unheard
from agentrl.sandbox.supervisor.bare import remove_folders


class BareProvider:
    """Implements `SandboxProvider`. Make it, use it and close it in one event loop.

    `state_dir` gets the records for `reap`. Raises UserError where this machine may not be used so.
    """

    def __init__(self, config: SandboxConfig, *, state_dir: Path) -> None:
        self._config, self._state_dir = config, state_dir.resolve()
        check_machine(left_folders(self._state_dir))
        self._place = asyncio.Semaphore(1)
        self._names = itertools.count(1)
        self._open: BareSandbox | None = None
        self._closed = False

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(snapshot=False, build=False)

    @property
    def room(self) -> int:
        return 0 if self._place.locked() else 1

    async def prepare(self, image: Image) -> None:
        """See `SandboxProvider.prepare`."""
        if problem := misfit(image):
            raise ImageError(problem)

    async def create(
        self, spec: SandboxSpec, *, snapshot: Snapshot | None = None, on_begin: Callable[[], None] = unheard
    ) -> BareSandbox:
        """Start one, when the one before is closed. Raises SandboxError, ImageError."""
        await self.prepare(spec.image)
        if snapshot is not None:
            raise SandboxError(f"snapshot {snapshot.id}: without isolation there are none")
        await self._place.acquire()
        on_begin()
        try:
            sandbox = await self._start(spec)
        except BaseException:
            self._place.release()
            raise
        try:
            await sandbox.put(await asyncio.to_thread(image_files, spec.image))  # and it has answered
        except BaseException as error:
            await asyncio.shield(sandbox.close())
            if isinstance(error, OSError | ValueError):
                raise SandboxError(f"sandbox {sandbox.id} did not start: {error}") from error
            raise
        return sandbox

    async def close(self) -> None:
        """Close the sandbox that is still open. Idempotent."""
        self._closed = True
        if self._open is not None:
            await self._open.close()

    async def _start(self, spec: SandboxSpec) -> BareSandbox:
        """One whose folders are made and whose door is up. Raises SandboxError, ImageError."""
        if self._closed:
            raise SandboxError("the sandbox provider is closed")
        mark, box_id = secrets.token_hex(8), f"{next(self._names)}-{spec.owner or 'box'}"
        home = str(self._state_dir / f"home-{mark}")
        folders = (*folders_of(spec.image), home)
        try:
            record = new_record(self._state_dir, mark, folders)
            await asyncio.to_thread(make, folders)
        except OSError as error:
            raise SandboxError(f"sandbox {box_id}: its folders cannot be made: {error}") from error
        try:
            record = record.made()
            link = await self._door(box_id, mark, home, folders)
        except BaseException:
            remove_folders(folders)
            raise
        self._open = BareSandbox(
            link,
            box_id,
            spec.image,
            record,
            output_limit_bytes=self._config.output_limit_bytes,
            on_gone=self._left,
        )
        return self._open

    async def _door(self, box_id: str, mark: str, home: str, folders: tuple[str, ...]) -> SupervisorLink:
        """Raises SandboxError."""
        lifetime_s = self._config.lifetime_s
        settings = {"box": box_id, "mark": mark, "home": home, "folders": folders, "lifetime_s": lifetime_s}
        link, _ = await open_link(settings, module="bare")
        return link

    def _left(self) -> None:
        self._open = None
        self._place.release()
