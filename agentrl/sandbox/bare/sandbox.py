"""`BareSandbox`: the owner's handle of a sandbox without isolation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agentrl.errors import SandboxError
from agentrl.sandbox.bare.records import Record
from agentrl.sandbox.bubblewrap.link import SupervisorLink
from agentrl.sandbox.bubblewrap.sandbox import BubblewrapSandbox
from agentrl.sandbox.bubblewrap.snapshot import BubblewrapSnapshot
from agentrl.sandbox.provider import Image


class BareSandbox(BubblewrapSandbox):
    """Speaks to its door as others do to theirs; but this link leads to nothing else, and ends with it."""

    def __init__(
        self,
        link: SupervisorLink,
        box_id: str,
        image: Image,
        record: Record,
        *,
        output_limit_bytes: int,
        on_gone: Callable[[], None],
    ) -> None:
        """`on_gone` is called once, when nothing is left of it, or when that was tried."""
        super().__init__(link, box_id, image, output_limit_bytes=output_limit_bytes, on_closed=lambda: None)
        self._record = record
        self._on_gone = on_gone
        self._gone = False

    async def snapshot(self) -> BubblewrapSnapshot:
        """Raises SandboxError: there are none."""
        raise SandboxError(f"sandbox {self.id}: without isolation there are no snapshots")

    async def close(self) -> None:
        """See `Sandbox.close`. Raises SandboxError if something of it could not be ended or removed."""
        try:
            await super().close()
        finally:
            await asyncio.shield(self._clear())

    async def _clear(self) -> None:
        """The door ends; where it was killed, what it would have done is done here."""
        await self._link.close()
        problems = await asyncio.to_thread(self._record.clear)
        if not self._gone:
            self._gone = True
            self._on_gone()
        if problems:
            raise SandboxError(f"sandbox {self.id}: {'; '.join(problems)}")
