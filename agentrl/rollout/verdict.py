"""What an episode's end means for training: decided from evidence by a pure function.

The rule: discard only what the policy cannot have caused. Whatever the agent did in a healthy sandbox counts, timeouts
included; what the machinery did never counts; what cannot be told apart is `uncertain` and never counts either.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from agentrl.tasks.task import Verification


class Verdict(StrEnum):
    """Whether and how an episode enters the gradient."""

    SUCCESS = "success"
    """The verifier ran and gave full reward."""
    MODEL_FAILURE = "model_failure"
    """The verifier ran and gave less, whatever the agent did to deserve it."""
    INFRA_FAILURE = "infra_failure"
    """The machinery failed; the member is run again."""
    UNCERTAIN = "uncertain"
    """The sandbox is healthy but there is no trustworthy reward; budgeted by schedule.uncertain_share_limit."""

    @property
    def usable(self) -> bool:
        """Whether the reward may enter a batch and the group's baseline."""
        return self in (Verdict.SUCCESS, Verdict.MODEL_FAILURE)


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


class Cause(StrEnum):
    """Why the verdict is what it is; a closed set."""

    REWARDED = "rewarded"
    """The verifier wrote a reward of at least 1."""
    UNREWARDED = "unrewarded"
    """The verifier wrote a reward below 1."""
    SANDBOX_START = "sandbox_start"
    """The sandbox never answered its first probe."""
    SANDBOX_LOST = "sandbox_lost"
    """The sandbox stopped answering, or its transport broke, while the agent acted."""
    SANDBOX_LOST_IN_VERIFIER = "sandbox_lost_in_verifier"
    """The same, while the verifier ran."""
    ENGINE_LOST = "engine_lost"
    """No engine could finish a turn within its deadline, retries included."""
    ENGINE_REFUSED = "engine_refused"
    """The engine refused the request as malformed: a mistake in the set-up, not the policy's."""
    VERIFIER_TIMEOUT = "verifier_timeout"
    """The verifier did not end in time in a healthy sandbox."""
    VERIFIER_NO_REWARD = "verifier_no_reward"
    """The verifier ended without a readable, finite reward in a healthy sandbox."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What was seen of an episode."""

    end: End | None = None
    """How the agent's part ended; None if it did not get that far."""
    sandbox_error: str | None = None
    """Text of the SandboxError, if one occurred."""
    sandbox_started: bool = False
    """The sandbox answered its first probe."""
    engine_error: str | None = None
    """Text of the EngineError that survived all retries."""
    engine_refusal: str | None = None
    """Text of the EngineRequestError."""
    verification: Verification | None = None
    """What the verifier did, if it was run."""
    alive_after: bool | None = None
    """Whether the sandbox answered a probe after the verifier."""


def decide(evidence: Evidence) -> tuple[Verdict, Cause]:
    """Evidence to verdict and cause."""
    if evidence.engine_refusal is not None:
        return Verdict.UNCERTAIN, Cause.ENGINE_REFUSED
    if evidence.engine_error is not None:
        return Verdict.INFRA_FAILURE, Cause.ENGINE_LOST
    if not evidence.sandbox_started:
        return Verdict.INFRA_FAILURE, Cause.SANDBOX_START
    if evidence.end is None:
        return Verdict.INFRA_FAILURE, Cause.SANDBOX_LOST
    if evidence.verification is None:
        return Verdict.INFRA_FAILURE, Cause.SANDBOX_LOST_IN_VERIFIER
    return _from_verification(evidence.verification, evidence.alive_after)


def _from_verification(verification: Verification, alive_after: bool | None) -> tuple[Verdict, Cause]:
    if verification.reward is not None:
        # A written reward stands even if the sandbox died afterwards: it was read before.
        if verification.reward >= 1.0:
            return Verdict.SUCCESS, Cause.REWARDED
        return Verdict.MODEL_FAILURE, Cause.UNREWARDED
    if not alive_after:
        return Verdict.INFRA_FAILURE, Cause.SANDBOX_LOST_IN_VERIFIER
    if verification.problem == "timed_out":
        return Verdict.UNCERTAIN, Cause.VERIFIER_TIMEOUT
    return Verdict.UNCERTAIN, Cause.VERIFIER_NO_REWARD
