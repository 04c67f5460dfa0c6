"""Images of one run only: where the cache lies on a file system that cannot hold layers, each step is a snapshot.

That is so in most containers, whose own root is an overlay. Snapshots are the supervisor's, in memory: what it built
is built again by the next one.
"""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from agentrl.sandbox.bubblewrap.image_keys import base_key
from agentrl.sandbox.bubblewrap.images import checked_key
from agentrl.sandbox.bubblewrap.link import SupervisorLink
from agentrl.sandbox.bubblewrap.snapshot import BubblewrapSnapshot
from agentrl.sandbox.provider import Step
from agentrl.sandbox.supervisor.userns import IdMap

Build = Callable[[Step, BubblewrapSnapshot | None], Awaitable[BubblewrapSnapshot]]
"""(step, what it stands on). Raises ImageError, SandboxError."""


class RunImages:
    """The steps that were done so far in this run."""

    def __init__(self, ids: IdMap, *, network: bool, build: Build) -> None:
        self._ids, self._network, self._build = ids, network, build
        self._made: dict[str, BubblewrapSnapshot] = {}
        self._lock = asyncio.Lock()

    async def snapshot(self, steps: tuple[Step, ...], link: SupervisorLink) -> BubblewrapSnapshot:
        """That of the last step, which the supervisor holds; steps that are not there are done. One image at a time.

        Raises ImageError, SandboxError.
        """
        async with self._lock:
            key = await asyncio.to_thread(base_key, self._ids, network=self._network)
            below: BubblewrapSnapshot | None = None
            for step in steps:
                key = await asyncio.to_thread(checked_key, key, step)
                made = self._made.get(key)
                if made is None or not made.held_by(link):
                    made = self._made[key] = await self._build(step, below)
                below = made
            assert below is not None, "an image with steps"
            return below


def cannot_hold_layers(folder: Path, *, as_root: bool) -> str | None:
    """Why a folder's file system takes no marks of overlays: whiteouts, and attributes. None if it does.

    `as_root`: overlays are mounted by root, and keep their marks in attributes of its own.
    """
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix="trial-") as trial:
            os.setxattr(trial, "trusted.overlay.opaque" if as_root else "user.overlay.opaque", b"y")
            os.mknod(f"{trial}/whiteout", stat.S_IFCHR, os.makedev(0, 0))
    except OSError as error:
        return str(error)
    return None
