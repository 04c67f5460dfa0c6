"""A sandbox under watch: long commands are accompanied by probes, and what commands met is counted as evidence."""

from __future__ import annotations

import asyncio
from collections import Counter

from agentrl.errors import SandboxError
from agentrl.rollout.config import AgentConfig, Shell
from agentrl.rollout.evidence import Commands, Probes
from agentrl.sandbox.death import Death
from agentrl.sandbox.provider import CommandLimits, ExecResult, Sandbox

PROBE_EVERY_S = 30.0
"""A command that takes longer is accompanied by a probe in every further such time. Most commands take less, and a
probe of a healthy sandbox costs under a millisecond."""
UNANSWERED_LIMIT = 2
"""Probes in a row that may stay unanswered: one may have met a moment of overload."""


class WatchedSandbox:
    """Commands of one sandbox, under watch. Everything but `exec` goes to the sandbox itself."""

    def __init__(self, sandbox: Sandbox, agent: AgentConfig, *, user: str | None, session_state: bytes = b"") -> None:
        """`agent` says how commands run: in a shell each or in one session, and within which limits.

        A session goes on from `session_state`, that of an earlier one.
        """
        self.sandbox = sandbox
        self._user = user
        self._limits = CommandLimits(
            memory_mb=agent.tool_memory_mb, cpu_s=agent.tool_cpu_s, pids=agent.tool_pids, file_mb=agent.tool_file_mb
        )
        in_session = agent.shell is Shell.session
        self._session = sandbox.session(user=user, state=session_state, limits=self._limits) if in_session else None
        self._counts: Counter[str] = Counter()
        self._asked = 0
        self._unanswered = 0
        self.running: str | None = None
        """The command in flight, or the one that the sandbox was lost in."""

    @property
    def session_state(self) -> bytes:
        """What the agent's shell session knows; empty without one."""
        return self._session.state if self._session is not None else b""

    @property
    def commands(self) -> Commands:
        """What commands met so far."""
        return Commands(**self._counts)

    @property
    def probes(self) -> Probes:
        return Probes(num_asked=self._asked, num_unanswered=self._unanswered)

    async def exec(self, command: str, *, timeout_s: float) -> ExecResult:
        """As `Sandbox.exec`. Raises SandboxError also when the sandbox answers no probes while the command runs."""
        self.running = command
        running = asyncio.ensure_future(self._run(command, timeout_s))
        try:
            result = await self._accompany(running)
        finally:
            running.cancel()
        self.running = None
        self._count(result)
        return result

    async def probe(self) -> bool:
        """Ask once."""
        alive = await self.sandbox.probe()
        self._asked += 1
        self._unanswered += not alive
        return alive

    async def _run(self, command: str, timeout_s: float) -> ExecResult:
        if self._session is not None:
            return await self._session.exec(command, timeout_s=timeout_s)
        return await self.sandbox.exec(command, user=self._user, timeout_s=timeout_s, limits=self._limits)

    async def _accompany(self, running: asyncio.Future[ExecResult]) -> ExecResult:
        in_a_row = 0
        while True:
            done, _ = await asyncio.wait({running}, timeout=PROBE_EVERY_S)
            if done:
                return running.result()
            in_a_row = 0 if await self.probe() else in_a_row + 1
            if in_a_row >= UNANSWERED_LIMIT and not running.done():
                raise SandboxError(f"{in_a_row} probes unanswered while a command runs", death=Death.SILENT)

    def _count(self, result: ExecResult) -> None:
        self._counts["num_run"] += 1
        self._counts["num_timed_out"] += result.timed_out
        self._counts["num_oom"] += result.oom
        self._counts["num_signalled"] += result.signal is not None
        self._counts["num_truncated"] += result.truncated
        self._counts["num_leftover"] += result.leftover_processes
        self._counts["num_shell_resets"] += result.shell_reset
