"""What was seen of an episode: the facts that a verdict is decided from, and that `agentrl why` shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from agentrl.sandbox.death import Death
from agentrl.tasks.task import Verification


class End(StrEnum):
    """How the agent's part of an episode ended; a closed set."""

    FINISHED = "finished"
    """The agent said that it is done."""
    TURN_BUDGET = "turn_budget"
    """agent.max_turns were used up."""
    TOKEN_BUDGET = "token_budget"
    """agent.max_episode_tokens were used up."""
    TIME_BUDGET = "time_budget"
    """The episode's deadline of active time passed."""
    NOT_BEGUN = "not_begun"
    """The set-up of one of the task's steps failed, so that the agent could not act on it."""


@dataclass(frozen=True, kw_only=True)
class Commands:
    """What the agent's commands met: counts over the episode. They explain a verdict, and never change one."""

    num_run: int = 0
    num_timed_out: int = 0
    """Killed at agent.tool_timeout_s, in a sandbox that lived on."""
    num_oom: int = 0
    """During which the sandbox's memory limit killed a process."""
    num_signalled: int = 0
    """Ended by a signal."""
    num_truncated: int = 0
    """Whose output was longer than kept."""
    num_leftover: int = 0
    """Processes left running behind commands."""
    num_shell_resets: int = 0
    """Of a session (agent.shell): commands that took their shell along; the next began with the state from before."""


@dataclass(frozen=True, kw_only=True)
class Times:
    """Where an episode's time went; seconds."""

    start_s: float = 0.0
    """Waiting for the sandbox."""
    generation_s: float = 0.0
    """Active time in engines: queueing, prefill, decoding, retries."""
    tool_s: float = 0.0
    """Active time in the agent's commands."""
    suspended_s: float = 0.0
    """Waiting for the trainer: generation was suspended."""
    verifier_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Probes:
    """How the sandbox answered while commands ran long, and after the verifier."""

    num_asked: int = 0
    num_unanswered: int = 0


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """Into how many token sequences an episode fell, and why (docs/agents.md)."""

    num: int = 1
    template_breaks: int = 0
    """Questions that the chat template did not let go on where they would have."""
    history_breaks: int = 0
    """Questions whose earlier messages were others than before."""
    dropped_tokens: int = 0
    """Sampled ones that are not trained on, with agent.on_break=drop."""


@dataclass(frozen=True, kw_only=True)
class Harness:
    """What was seen of a harness (agent.harness)."""

    exit_code: int | None = None
    """Negative for a signal; None if it was ended because of a budget or of what befell the episode."""
    num_answered: int = 0
    """Questions that the policy answered."""
    num_refused: int = 0
    """Requests that could not be answered as they stood."""
    num_unread: int = 0
    """Answers that nobody was there for any more."""
    refusal: str | None = None
    """The last one."""
    log_tail: str = ""
    """The end of what it printed, if it failed."""


@dataclass(frozen=True, kw_only=True)
class StepScore:
    """Grading after one step of a task of several."""

    step: str
    reward: float | None
    problem: str | None


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What was seen of an episode. A field that is None or empty was not seen."""

    end: End | None = None
    """How the agent's part ended; None if it did not get that far."""
    sandbox_started: bool = False
    """The sandbox answered its first probe."""
    sandbox_error: str | None = None
    """Text of the SandboxError, if one occurred."""
    death: Death | None = None
    """How the sandbox ended, if it did and its provider knows."""
    running: str | None = None
    """The command in flight when the sandbox was lost."""
    engine_error: str | None = None
    """Text of the EngineError that survived all retries."""
    engine_refusal: str | None = None
    """Text of the EngineRequestError."""
    verification: Verification | None = None
    """What the verifier did, if it was run; of a task of several steps, the rewards put together."""
    steps: tuple[StepScore, ...] = ()
    """Of a task of several steps: those that were graded."""
    alive_after: bool | None = None
    """Whether the sandbox answered a probe after a verifier that gave no reward."""
    control: Verification | None = None
    """The same verifier in an untouched sandbox, run when it gave no reward for what the agent left."""
    again: Verification | None = None
    """The same verifier once more on what the agent left, run when the control gave a reward."""
    clock_jump_s: float = 0.0
    """By how much the wall clock moved against the monotonic one while the verifier ran."""
    harness: Harness | None = None
    """What was seen of the harness; None with the built-in agent."""
    resumed_turns: int = 0
    """Turns taken over from a snapshot instead of being played."""
    commands: Commands = field(default_factory=Commands)
    probes: Probes = field(default_factory=Probes)
    sequences: Sequences = field(default_factory=Sequences)
    times: Times = field(default_factory=Times)
