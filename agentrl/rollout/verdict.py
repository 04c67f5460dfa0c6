"""What an episode's end means for training: decided from evidence by a pure function.

The rule: discard only what the policy cannot have caused. Whatever the agent did in a healthy sandbox counts, timeouts
included; what the machinery did never counts; what cannot be told apart is `uncertain` and never counts either.
docs/verdicts.md has the table, and says where the rule fails.
"""

from __future__ import annotations

from enum import StrEnum

from agentrl.rollout.evidence import Evidence, Harness
from agentrl.sandbox.death import Death
from agentrl.tasks.task import Verification

CLOCK_JUMP_S = 5.0
"""A wall clock that moved further than this against the monotonic one was set, or the machine slept: more than any
slewing does in a verifier's time (NTP slews at most 0.5 ms a second)."""

_SHELL_SIGNAL, _MAX_SIGNAL = 128, 64
"""A shell's exit code for a command that signal N ended is 128 + N."""


class Verdict(StrEnum):
    """Whether and how an episode enters the gradient."""

    SUCCESS = "success"
    """The verifier ran and gave full reward."""
    MODEL_FAILURE = "model_failure"
    """The verifier ran and gave less, or the agent itself made grading impossible."""
    INFRA_FAILURE = "infra_failure"
    """The machinery failed; the member is run again."""
    UNCERTAIN = "uncertain"
    """The sandbox is healthy but there is no trustworthy reward; budgeted by schedule.uncertain_share_limit."""

    @property
    def usable(self) -> bool:
        """Whether the reward may enter a batch and the group's baseline."""
        return self in (Verdict.SUCCESS, Verdict.MODEL_FAILURE)


class Cause(StrEnum):
    """Why the verdict is what it is; a closed set."""

    REWARDED = "rewarded"
    """The verifier wrote a reward of at least 1."""
    UNREWARDED = "unrewarded"
    """The verifier wrote a reward below 1."""
    VERIFIER_BROKEN_BY_AGENT = "verifier_broken_by_agent"
    """The verifier gave none for what the agent left, twice, and did give one in an untouched sandbox: reward 0."""
    SANDBOX_OUT_OF_MEMORY = "sandbox_out_of_memory"
    """The agent's memory took the whole sandbox down, first process included: reward 0."""
    SANDBOX_OUT_OF_DISK = "sandbox_out_of_disk"
    """The agent wrote more than its sandbox's disk, and the cluster took the sandbox away for it: reward 0."""
    SANDBOX_ENDED_BY_AGENT = "sandbox_ended_by_agent"
    """The sandbox's first process ended from inside while the agent acted: reward 0."""
    SANDBOX_START = "sandbox_start"
    """The sandbox never answered its first probe."""
    SANDBOX_IMAGE = "sandbox_image"
    """The sandbox's image could not be pulled or built."""
    SANDBOX_LOST = "sandbox_lost"
    """The sandbox stopped answering, or its transport broke, while the agent acted; nobody knows more."""
    SANDBOX_KILLED = "sandbox_killed"
    """A signal from outside ended the sandbox while the agent acted."""
    SANDBOX_SILENT = "sandbox_silent"
    """The sandbox is there, but its probe was not answered while a command ran."""
    SANDBOX_EXPIRED = "sandbox_expired"
    """The sandbox outlived sandbox.lifetime_s while the agent acted."""
    SANDBOX_EVICTED = "sandbox_evicted"
    """The cluster took the sandbox away, or its node was lost, while the agent acted."""
    SANDBOX_LOST_IN_VERIFIER = "sandbox_lost_in_verifier"
    """The sandbox was lost, however, while the verifier ran."""
    ENGINE_LOST = "engine_lost"
    """No engine could finish a turn within its deadline, retries included."""
    ENGINE_REFUSED = "engine_refused"
    """The engine refused the request as malformed: a mistake in the set-up, not the policy's."""
    HARNESS_NOT_STARTED = "harness_not_started"
    """The harness ended, or its time was up, before the policy had answered anything: nothing of it is the policy's."""
    HARNESS_KILLED = "harness_killed"
    """A signal ended the harness after the policy had answered."""
    HARNESS_CRASHED = "harness_crashed"
    """The harness exited with another code than 0 after the policy had answered: its mistake, or what it was told."""
    VERIFIER_TIMEOUT = "verifier_timeout"
    """The verifier did not end in time in a healthy sandbox."""
    VERIFIER_NOT_STARTED = "verifier_not_started"
    """The tests could not be brought into a healthy sandbox, or there are none."""
    VERIFIER_NO_REWARD = "verifier_no_reward"
    """The verifier ended without a readable, finite reward in a healthy sandbox."""
    VERIFIER_MISSING_TOOL = "verifier_missing_tool"
    """The tests asked for something that needs a network or is not in the image; what they scored means nothing."""
    VERIFIER_FLAKY = "verifier_flaky"
    """The verifier gave no reward once, and one when it was run again: its evidence contradicts itself."""
    VERIFIER_ENDED_SANDBOX = "verifier_ended_sandbox"
    """The sandbox ended from inside or out of memory while the verifier ran: its doing or the agent's."""
    CLOCK_JUMPED = "clock_jumped"
    """The clock was set, or the machine slept, while the verifier ran and gave less than full reward."""


_LOST_WHILE_ACTING = {
    Death.KILLED: Cause.SANDBOX_KILLED,
    Death.SILENT: Cause.SANDBOX_SILENT,
    Death.EXPIRED: Cause.SANDBOX_EXPIRED,
    Death.EVICTED: Cause.SANDBOX_EVICTED,
    Death.NODE_LOST: Cause.SANDBOX_EVICTED,
}
"""Whatever is not here is SANDBOX_LOST."""


def decide(evidence: Evidence) -> tuple[Verdict, Cause]:
    """Evidence to verdict and cause."""
    if evidence.engine_refusal is not None:
        return Verdict.UNCERTAIN, Cause.ENGINE_REFUSED
    if evidence.engine_error is not None:
        return Verdict.INFRA_FAILURE, Cause.ENGINE_LOST
    if not evidence.sandbox_started:
        cause = Cause.SANDBOX_IMAGE if evidence.death is Death.IMAGE else Cause.SANDBOX_START
        return Verdict.INFRA_FAILURE, cause
    if evidence.end is None:
        if evidence.harness is not None and (evidence.sandbox_error is None or not evidence.harness.num_answered):
            return _without_harness(evidence.harness, evidence.death)
        return _lost_while_acting(evidence.death)
    if evidence.verification is None:
        if evidence.death is not None and evidence.death.by_agent:
            return Verdict.UNCERTAIN, Cause.VERIFIER_ENDED_SANDBOX
        return Verdict.INFRA_FAILURE, Cause.SANDBOX_LOST_IN_VERIFIER
    if evidence.verification.reward is not None:
        return _rewarded(evidence.verification.reward, evidence.clock_jump_s)
    if not evidence.alive_after:
        return Verdict.INFRA_FAILURE, Cause.SANDBOX_LOST_IN_VERIFIER
    return _unrewarded(evidence.verification, evidence.control, evidence.again)


def reward(evidence: Evidence) -> float:
    """The reward of an episode whose verdict is usable: the verifier's, or 0 where the agent made it impossible."""
    verification = evidence.verification
    return 0.0 if verification is None or verification.reward is None else verification.reward


def _without_harness(harness: Harness, death: Death | None) -> tuple[Verdict, Cause]:
    """Nothing was graded: what a harness leaves in the middle of its work says nothing of the policy."""
    if death is not None:
        return Verdict.INFRA_FAILURE, _LOST_WHILE_ACTING.get(death, Cause.SANDBOX_LOST)
    if not harness.num_answered:
        return Verdict.INFRA_FAILURE, Cause.HARNESS_NOT_STARTED
    code = harness.exit_code
    if code is not None and (code < 0 or 0 < code - _SHELL_SIGNAL <= _MAX_SIGNAL):
        return Verdict.INFRA_FAILURE, Cause.HARNESS_KILLED
    return Verdict.UNCERTAIN, Cause.HARNESS_CRASHED


def _lost_while_acting(death: Death | None) -> tuple[Verdict, Cause]:
    if death is Death.OUT_OF_MEMORY:
        return Verdict.MODEL_FAILURE, Cause.SANDBOX_OUT_OF_MEMORY
    if death is Death.OUT_OF_DISK:
        return Verdict.MODEL_FAILURE, Cause.SANDBOX_OUT_OF_DISK
    if death is Death.ENDED_INSIDE:
        return Verdict.MODEL_FAILURE, Cause.SANDBOX_ENDED_BY_AGENT
    return Verdict.INFRA_FAILURE, _LOST_WHILE_ACTING.get(death, Cause.SANDBOX_LOST) if death else Cause.SANDBOX_LOST


def _rewarded(score: float, clock_jump_s: float) -> tuple[Verdict, Cause]:
    """A written reward stands even if the sandbox died afterwards: it was read before."""
    if score >= 1.0:
        return Verdict.SUCCESS, Cause.REWARDED
    if abs(clock_jump_s) > CLOCK_JUMP_S:
        return Verdict.UNCERTAIN, Cause.CLOCK_JUMPED
    return Verdict.MODEL_FAILURE, Cause.UNREWARDED


def _unrewarded(
    verification: Verification, control: Verification | None, again: Verification | None
) -> tuple[Verdict, Cause]:
    """No reward in a healthy sandbox: the verifier's fault, unless it works where the agent never was."""
    if verification.problem == "missing_tool":
        return Verdict.UNCERTAIN, Cause.VERIFIER_MISSING_TOOL
    if control is not None and control.reward is not None and again is not None:
        if again.reward is not None:
            return Verdict.UNCERTAIN, Cause.VERIFIER_FLAKY
        return Verdict.MODEL_FAILURE, Cause.VERIFIER_BROKEN_BY_AGENT
    if verification.problem == "timed_out":
        return Verdict.UNCERTAIN, Cause.VERIFIER_TIMEOUT
    if not verification.started:
        return Verdict.UNCERTAIN, Cause.VERIFIER_NOT_STARTED
    return Verdict.UNCERTAIN, Cause.VERIFIER_NO_REWARD
