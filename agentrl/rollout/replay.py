"""An episode once more: its recorded commands in a fresh sandbox of the same image, and what came out otherwise.

No model is asked: the commands are those that it gave. What differs then is the sandbox's doing, the task's, or
chance; what does not differ can be studied at leisure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from agentrl.errors import ImageError, SandboxError
from agentrl.rollout.config import AgentConfig
from agentrl.rollout.grading import close
from agentrl.rollout.observation import observe
from agentrl.rollout.verdict import Verdict
from agentrl.rollout.watched import WatchedSandbox
from agentrl.sandbox.provider import SandboxProvider
from agentrl.tasks.rewards import together
from agentrl.tasks.task import Step, Task, Verification
from agentrl.tasks.verifier import prepare_step, verify


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """One turn as it was. Written by the run's ledger or a bundle."""

    turn: int
    command: str | None
    """None: the message asked for none that could be run."""
    timeout_s: float | None
    exit_code: int | None
    observation: str | None
    """None: the agent said that it is done."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How an episode ended."""

    verdict: str | None
    cause: str | None
    reward: float | None


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A turn that went otherwise."""

    turn: int
    command: str
    exit_code: tuple[int | None, int | None]
    """(recorded, now)"""
    observation: tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What a replay saw."""

    num_commands: int
    differences: tuple[Difference, ...]
    verification: Verification | None
    """None if the sandbox was lost before it."""
    problem: str | None
    """Text of the SandboxError that ended it."""

    def summary(self, recorded: Outcome) -> str:
        """Whether the episode's outcome happens again, in one sentence."""
        if self.problem is not None:
            return f"not comparable: this sandbox was lost too ({self.problem})"
        same = f"all {self.num_commands} commands did the same"
        turns = ", ".join(str(found.turn) for found in self.differences)
        did = f"{len(self.differences)} of {self.num_commands} commands did otherwise (turn {turns})"
        commands = did if self.differences else same
        reward = None if self.verification is None else self.verification.reward
        if recorded.verdict == Verdict.INFRA_FAILURE:
            return f"the failure did not happen again: {commands}, and the reward is {_shown(reward)}"
        if reward == recorded.reward:
            kind = "reproducible" if not self.differences else "the same outcome by another way"
            return f"{kind}: {commands}, and the reward is {_shown(reward)} again"
        return f"not reproducible: {commands}, and the reward is {_shown(reward)} instead of {_shown(recorded.reward)}"

    def reproduced(self, recorded: Outcome) -> bool:
        """Whether commands and outcome were the same."""
        reward = None if self.verification is None else self.verification.reward
        return self.problem is None and not self.differences and reward == recorded.reward


async def replay(
    task: Task, turns: Sequence[Recorded], agent: AgentConfig, provider: SandboxProvider, *, verified: bool = True
) -> Replayed:
    """Run the recorded commands with the recorded limits; then, if the episode came that far, the verifier.

    Raises ImageError.
    """
    differences: list[Difference] = []
    graded: list[Verification] = []
    num_commands = 0
    try:
        sandbox = await provider.create(task.spec)
    except ImageError:
        raise
    except SandboxError as error:
        return Replayed(num_commands=0, differences=(), verification=None, problem=str(error))
    watched = WatchedSandbox(sandbox, agent, user=task.agent_user)
    problem: str | None = None
    try:
        for step, part in _parts(task, turns):
            if step is not None:
                await prepare_step(task, step, sandbox)
            for turn in part:
                if turn.command is not None:
                    num_commands += 1
                    differences += await _again(turn, turn.command, agent, watched)
            if verified:
                graded.append(await verify(task, sandbox, step))
    except SandboxError as error:
        problem = str(error)
    finally:
        await close(sandbox)
    return Replayed(
        num_commands=num_commands,
        differences=tuple(differences),
        verification=together(task, graded) if graded else None,
        problem=problem,
    )


def _parts(task: Task, turns: Sequence[Recorded]) -> list[tuple[Step | None, list[Recorded]]]:
    """Turns by the step of the task in which they were played: each ends where the agent said that it is done."""
    steps: Sequence[Step | None] = task.steps or (None,)
    parts: list[tuple[Step | None, list[Recorded]]] = [(steps[0], [])]
    for turn in turns:
        parts[-1][1].append(turn)
        if turn.observation is None and len(parts) < len(steps) and turn is not turns[-1]:
            parts.append((steps[len(parts)], []))
    return parts


async def _again(turn: Recorded, command: str, agent: AgentConfig, watched: WatchedSandbox) -> list[Difference]:
    timeout_s = turn.timeout_s or agent.tool_timeout_s
    result = await watched.exec(command, timeout_s=timeout_s)
    shown = observe(result, limit_chars=agent.observation_chars, timeout_s=timeout_s)
    if (result.exit_code, shown) == (turn.exit_code, turn.observation):
        return []
    return [
        Difference(
            turn=turn.turn,
            command=command,
            exit_code=(turn.exit_code, result.exit_code),
            observation=(turn.observation or "", shown),
        )
    ]


def _shown(reward: float | None) -> str:
    return "none" if reward is None else f"{reward:g}"
