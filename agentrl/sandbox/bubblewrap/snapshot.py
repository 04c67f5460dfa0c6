"""`BubblewrapSnapshot`: sealed layers that the supervisor holds."""

from __future__ import annotations

import contextlib

from agentrl.errors import SandboxError
from agentrl.sandbox.bubblewrap.link import SupervisorLink


class BubblewrapSnapshot:
    """Implements `Snapshot`. It is gone when its supervisor is: nothing of it is on a disk."""

    def __init__(self, link: SupervisorLink, name: str, leftover_processes: int) -> None:
        self.id = name
        self.leftover_processes = leftover_processes
        self._link = link
        self._released = False

    def held_by(self, link: SupervisorLink) -> bool:
        """Whether sandboxes of this supervisor can be made of it."""
        return self._link is link and not self._released

    async def release(self) -> None:
        """See `Snapshot.release`."""
        if not self._released:
            self._released = True
            with contextlib.suppress(SandboxError):  # the supervisor is gone, and it took the layers along
                await self._link.request("release", snapshot=self.id)
