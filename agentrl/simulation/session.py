"""Sessions of simulated sandboxes: their commands have no shell that could remember anything."""

from __future__ import annotations

from dataclasses import replace

from agentrl.sandbox.provider import ExecResult, Sandbox


class SimulatedSession:
    """Implements `Session` on any sandbox: each command stands alone, and one out of time takes its shell along."""

    def __init__(self, sandbox: Sandbox, *, user: str | None, state: bytes) -> None:
        self._sandbox = sandbox
        self._user = user
        self._state = state

    @property
    def state(self) -> bytes:
        return self._state

    async def exec(self, command: str, *, timeout_s: float, max_output_bytes: int | None = None) -> ExecResult:
        """See `Session.exec`."""
        result = await self._sandbox.exec(
            command, user=self._user, timeout_s=timeout_s, max_output_bytes=max_output_bytes
        )
        if result.exit_code is None:
            return replace(result, shell_reset=True)
        self._state = b"left by a shell"
        return result
