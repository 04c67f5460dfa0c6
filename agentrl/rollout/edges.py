"""What an episode needs of others: somebody who samples, a chat format, and somebody who writes turns down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.inference.engine import Generation, SamplingParams
from agentrl.rollout.chat import Message, Rendered
from agentrl.rollout.hold import Hold
from agentrl.sandbox.provider import ExecResult
from agentrl.wire import Segment


class Sampler(Protocol):
    """Samples for episodes, on whichever engine; hides suspension, restarts and retries."""

    async def sample(
        self, episode: str, rid: str, ids: list[int], params: SamplingParams, hold: Hold | None = None
    ) -> Generation:
        """Waits while generation is suspended, and within `hold.waiting()` while other episodes have all the room.

        Raises EngineError when the turn's deadline passes; SandboxError if the sandbox dies in the hold.
        """
        ...

    def forget(self, episode: str) -> None:
        """The episode samples no more; its place on an engine is free. Idempotent."""
        ...


class ChatFormat(Protocol):
    """Conversations as exact token ids; in production `agentrl.rollout.chat.Chat`, whose docstrings are the promise."""

    end_id: int
    stop_ids: tuple[int, ...]

    def render(
        self,
        messages: Sequence[Message],
        *,
        after: str | None = "",
        known: int = 0,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Rendered | None: ...

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str: ...


@dataclass(frozen=True, kw_only=True)
class TurnRecord:
    """One finished turn, as the ledger keeps it."""

    episode: str
    turn: int
    began_at: float
    """Seconds since the Unix epoch."""
    message: str
    command: str | None
    timeout_s: float | None
    """The command's limit of wall time."""
    result: ExecResult | None
    """What the command did, its output included."""
    observation: str | None
    """What the agent was shown of it."""
    segment: Segment
    generation_s: float
    tool_s: float
    suspended_s: float
    """In which generation stood still for training or publication."""


class Recorder(Protocol):
    """Where finished turns go; returns when the turn is durable."""

    def record_turn(self, record: TurnRecord) -> None: ...
