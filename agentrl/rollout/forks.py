"""The members of a group as forks of one sandbox: what a task's image copies in is set up once a group, then sealed."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass, field

from agentrl.errors import SandboxError
from agentrl.sandbox.provider import Sandbox, SandboxProvider, SandboxSpec, Snapshot

log = logging.getLogger(__name__)

MOST_KEPT = 64
"""Groups whose sealed state is kept, for members that start late or again; the oldest goes first."""


@dataclass
class _Group:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    snapshot: Snapshot | None = None


class GroupForks:
    """Starts sandboxes: the first of a group as always, the others from its state at that moment."""

    def __init__(self, provider: SandboxProvider) -> None:
        self._provider = provider
        self._groups: OrderedDict[str, _Group] = OrderedDict()

    async def create(self, group: str, spec: SandboxSpec) -> Sandbox:
        """As `SandboxProvider.create`; the first member of a group holds up the others until it is sealed."""
        found = await self._group(group)
        async with found.lock:
            if found.snapshot is None:
                sandbox = await self._provider.create(spec)
                try:
                    found.snapshot = await sandbox.snapshot()
                except BaseException:
                    await asyncio.shield(sandbox.close())
                    raise
                return sandbox
        try:
            return await self._provider.create(spec, snapshot=found.snapshot)
        except SandboxError as error:  # it went with its provider's supervisor
            log.warning("%s is set up again: %s", group, error)
            found.snapshot = None
            return await self._provider.create(spec)

    async def _group(self, group: str) -> _Group:
        found = self._groups.setdefault(group, _Group())
        self._groups.move_to_end(group)
        if len(self._groups) > MOST_KEPT:
            _, oldest = self._groups.popitem(last=False)
            if oldest.snapshot is not None:
                await oldest.snapshot.release()
        return found
