"""The supervisor's life as its owner sees it: started when needed, and again if it died; its remains are removed."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from agentrl.errors import SandboxError
from agentrl.sandbox.bubblewrap import records
from agentrl.sandbox.bubblewrap.host import Host
from agentrl.sandbox.bubblewrap.layout import merged_folders, root_place
from agentrl.sandbox.bubblewrap.link import SupervisorLink, open_link
from agentrl.sandbox.bubblewrap.start_files import overlay_base

_LIMITS_BY = {2: "cgroup2", 1: "cgroup1", 0: "rlimits"}

logger = logging.getLogger(__name__)


class Supervision:
    """At most one supervisor at a time. `state_dir` gets the record of what it made, and is where its stage lies."""

    def __init__(self, host: Host, state_dir: Path, cache: Path) -> None:
        """`cache` is where images are built."""
        self._host, self._state_dir, self._cache = host, state_dir.resolve(), cache
        self._link: SupervisorLink | None = None
        self._record: Path | None = None
        self._lock = asyncio.Lock()
        self._closed = False
        self.limits_by: str | None = None
        """What holds memory and processes; None before the first supervisor."""
        self.limits_cpu = True
        """Whether a limit of CPU time holds, as far as is known."""

    async def link(self) -> SupervisorLink:
        """The running supervisor, or a new one if there is none or it has died. Raises SandboxError."""
        async with self._lock:
            if self._closed:
                raise SandboxError("the sandbox provider is closed")
            if self._link is not None and self._link.lost:
                logger.warning("the sandboxes' supervisor ended; starting another")
                await self._end()
            if self._link is None:
                await self._start()
            assert self._link is not None
            return self._link

    async def close(self) -> None:
        """End it, and all that it holds. Idempotent."""
        self._closed = True
        async with self._lock:
            await self._end()

    async def _start(self) -> None:
        name = records.group_name()
        self._state_dir.mkdir(parents=True, exist_ok=True)
        link, greeting = await open_link(self._settings(name))
        self._record = records.write(self._state_dir, name, link.pid, greeting["bases"], self._cache)
        self._link = link
        self.limits_by = _LIMITS_BY[greeting["version"]]
        self.limits_cpu = greeting["cpu"]
        if self.limits_by == "rlimits":
            logger.warning("no writable cgroups: memory is limited per process only, and OOM is not seen")
        if self._host.overlay:
            try:
                base = await asyncio.to_thread(overlay_base, with_agent=self._host.ids.ranged)
            except OSError as error:
                raise SandboxError(f"the host's public files cannot be read: {error}") from error
            await link.request("base", base.content, entries=base.entries)

    def _settings(self, name: str) -> dict[str, Any]:
        """What a supervisor is told of this machine; `name` is that of its control groups."""
        host = self._host
        return {
            "base_name": name if host.cgroups else "",
            "standing": host.standing,
            "ids": [host.ids.first, host.ids.count],
            "stage": str(self._state_dir) if host.overlay else None,
            "place": root_place(),
            "merged": merged_folders() or (),
        }

    async def _end(self) -> None:
        """It removes its control groups itself, unless it was killed."""
        if self._link is not None:
            await self._link.close()
            self._link = None
        if self._record is not None:
            for path in await asyncio.to_thread(records.remove_remains, self._record):
                logger.error("control group %s could not be removed", path)
            self._record = None
