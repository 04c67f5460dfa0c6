"""One attempt at a task: which it is, and what changes while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

from agentrl.rollout.checkpoints import Checkpoint
from agentrl.rollout.conversation import Conversation
from agentrl.rollout.edges import TurnRecord
from agentrl.rollout.evidence import End, Harness
from agentrl.rollout.hold import Hold
from agentrl.rollout.watched import WatchedSandbox
from agentrl.tasks.task import Step, Task


@dataclass(frozen=True, kw_only=True)
class EpisodeSpec:
    """Which attempt at which task."""

    episode: str
    """Fixed length in a run (engines match request ids by prefix)."""
    group: str
    task: Task
    seed: int
    """The run's seed; with the episode id it fixes every request's sampling seed."""
    greedy: bool = False


@dataclass(kw_only=True)
class Attempt:
    """What changes while an episode runs."""

    spec: EpisodeSpec
    conversation: Conversation
    started: float
    """In active time."""
    began: float
    """In the clock's time."""
    hold: Hold | None = None
    """None until there is a sandbox."""
    num_turns: int = 0
    start_s: float = 0.0
    waited_s: float = 0.0
    """The same in active time: who waits for a sandbox has not begun to act, so its time budget stands still."""
    generation_s: float = 0.0
    tool_s: float = 0.0
    turns: list[TurnRecord] = field(default_factory=list)
    """Finished ones, where checkpoints are made."""
    checkpoint: Checkpoint | None = None
    """The last one, whose snapshot is this attempt's to release."""
    resumed_turns: int = 0
    harness: Harness | None = None

    def resume(self) -> None:
        """Take over what the checkpoint holds, if there is one; turns get this attempt's name."""
        if self.checkpoint is None:
            return
        self.turns = [replace(record, episode=self.spec.episode) for record in self.checkpoint.turns]
        self.conversation = self.checkpoint.conversation.copy()
        self.num_turns = self.resumed_turns = self.checkpoint.num_turns
        self.started -= self.checkpoint.active_s
        self.began -= self.checkpoint.active_s
        self.generation_s = sum(record.generation_s for record in self.turns)
        self.tool_s = sum(record.tool_s for record in self.turns)

    async def release(self) -> None:
        """Give up the checkpoint."""
        if self.checkpoint is not None:
            await self.checkpoint.snapshot.release()
            self.checkpoint = None

    def active_now(self) -> float:
        """Without the time in which this episode waited for an engine that is lent. Only once there is a sandbox."""
        assert self.hold is not None
        return self.hold.active_now()


class Agent(Protocol):
    """Who acts in an episode: the built-in loop, or a harness."""

    def tell(self, attempt: Attempt, step: Step | None) -> bool:
        """The task, or a step of it, begins. False: there is no room for what has to be said about it."""
        ...

    async def act(self, attempt: Attempt, step: Step | None, watched: WatchedSandbox, deadline: float) -> End:
        """Turns until the agent or a budget ends the episode, or the step. `deadline` is in active time.

        Raises SandboxError, EngineError, EngineRequestError, HarnessFailed.
        """
        ...
