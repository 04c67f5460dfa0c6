"""What stands still while an episode waits for its turn on a GPU: its clock, and all that runs in its sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agentrl.clock import monotonic
from agentrl.rollout.active_time import ActiveTime
from agentrl.sandbox.provider import Sandbox


class Hold:
    """One episode's. Waiting is not the agent's doing, so no clock that bounds the agent counts it."""

    def __init__(self, sandbox: Sandbox, run_time: ActiveTime) -> None:
        """`run_time` stands still for all episodes at once, while generation is suspended as a whole."""
        self._sandbox = sandbox
        self._run_time = run_time
        self._own_time = ActiveTime()

    def active_now(self) -> float:
        """Active seconds of this episode on an arbitrary origin; before it ever waited, those of the run."""
        return self._own_time.read(self._run_time.read(monotonic()))

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """Within, clock and sandbox stand still. Raises SandboxError if the sandbox is dead; it is not thawed then,
        nor when the wait ends with an error: who gives up closes it."""
        self._own_time.pause(self._run_time.read(monotonic()))
        try:
            await self._sandbox.freeze()
            yield
            await self._sandbox.thaw()
        finally:
            self._own_time.resume(self._run_time.read(monotonic()))
