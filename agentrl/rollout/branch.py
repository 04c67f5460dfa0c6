"""Episodes that begin in the middle of another one: the same tokens, and the state that its commands led to.

The state is made once, by running the recorded commands in a fresh sandbox, and sealed; every episode of the run then
starts in a fork of it. The tokens are context, not samples: nothing of them is trained on.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from agentrl.rollout.checkpoints import Checkpoint
from agentrl.rollout.config import AgentConfig
from agentrl.rollout.conversation import Conversation
from agentrl.rollout.edges import ChatFormat
from agentrl.rollout.grading import close
from agentrl.rollout.observation import observe
from agentrl.rollout.replay import Recorded
from agentrl.rollout.watched import WatchedSandbox
from agentrl.sandbox.provider import SandboxProvider, Snapshot
from agentrl.tasks.task import Task

log = logging.getLogger(__name__)


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where episodes begin. Written into the run's directory at its start, so that a resumed run begins there too."""

    episode: str
    task: str
    ids: list[int]
    """Prompt, messages and observations up to where the next message begins."""
    turns: list[Recorded]
    """Those before it."""


class Branch:
    """Makes the state of an origin, once, and gives out checkpoints in it."""

    def __init__(self, origin: Origin, agent: AgentConfig, chat: ChatFormat, provider: SandboxProvider) -> None:
        self._origin = origin
        self._chat = chat
        self._agent = agent
        self._provider = provider
        self._made: Checkpoint | None = None
        self._lock = asyncio.Lock()

    def concerns(self, task: Task) -> bool:
        return task.name == self._origin.task

    async def checkpoint(self, task: Task) -> Checkpoint:
        """The origin, for one more episode. Raises SandboxError, ImageError."""
        async with self._lock:
            if self._made is None:
                self._made = await self._make(task)
            return self._made

    def forget(self) -> None:
        """The sealed state is gone: make it anew for the next episode."""
        self._made = None

    async def _make(self, task: Task) -> Checkpoint:
        sandbox = await self._provider.create(task.spec)
        watched = WatchedSandbox(sandbox, self._agent, user=task.agent_user)
        try:
            for turn in self._origin.turns:
                if turn.command is not None:
                    await self._again(turn, turn.command, watched)
            snapshot = _Shared(await sandbox.snapshot())
        finally:
            await close(sandbox)
        return Checkpoint(
            turns=(),
            num_turns=len(self._origin.turns),
            conversation=Conversation.continuing(self._chat, self._origin.ids),
            active_s=0.0,
            snapshot=snapshot,
            session_state=watched.session_state,
        )

    async def _again(self, turn: Recorded, command: str, watched: WatchedSandbox) -> None:
        timeout_s = turn.timeout_s or self._agent.tool_timeout_s
        result = await watched.exec(command, timeout_s=timeout_s)
        shown = observe(result, limit_chars=self._agent.observation_chars, timeout_s=timeout_s)
        if (result.exit_code, shown) != (turn.exit_code, turn.observation):
            log.warning("turn %d of %s did otherwise now: %s", turn.turn, self._origin.episode, shown[:200])


class _Shared:
    """A snapshot that many episodes begin in: none of them releases it; it goes when the provider closes."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.inner = snapshot

    @property
    def id(self) -> str:
        return self.inner.id

    @property
    def leftover_processes(self) -> int:
        return self.inner.leftover_processes

    async def release(self) -> None:
        return


def own_snapshot(snapshot: Snapshot) -> Snapshot:
    """The provider's own handle of a snapshot."""
    return snapshot.inner if isinstance(snapshot, _Shared) else snapshot
