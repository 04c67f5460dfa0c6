"""From evidence to verdict and cause: discard only what the policy cannot have caused."""

from __future__ import annotations

import pytest

from agentrl.rollout.verdict import Cause, End, Evidence, Verdict, decide
from agentrl.tasks.task import Verification


def verified(reward: float | None = None, problem: str | None = None) -> Verification:
    return Verification(reward=reward, problem=problem, started=True, output="", duration_s=1.0)


def acted(end: End | None = End.FINISHED, **fields: object) -> Evidence:
    return Evidence(sandbox_started=True, end=end, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("evidence", "verdict", "cause"),
    [
        (acted(verification=verified(1.0)), Verdict.SUCCESS, Cause.REWARDED),
        (acted(verification=verified(0.0)), Verdict.MODEL_FAILURE, Cause.UNREWARDED),
        (acted(verification=verified(0.5)), Verdict.MODEL_FAILURE, Cause.UNREWARDED),
        (acted(End.TIME_BUDGET, verification=verified(0.0)), Verdict.MODEL_FAILURE, Cause.UNREWARDED),
        (acted(End.TOKEN_BUDGET, verification=verified(1.0)), Verdict.SUCCESS, Cause.REWARDED),
        (acted(End.TURN_BUDGET, verification=verified(0.0)), Verdict.MODEL_FAILURE, Cause.UNREWARDED),
        # The reward was read before the sandbox died.
        (acted(verification=verified(0.0), alive_after=False), Verdict.MODEL_FAILURE, Cause.UNREWARDED),
        (Evidence(sandbox_error="no start"), Verdict.INFRA_FAILURE, Cause.SANDBOX_START),
        (acted(None, sandbox_error="gone", alive_after=False), Verdict.INFRA_FAILURE, Cause.SANDBOX_LOST),
        (acted(sandbox_error="gone", alive_after=False), Verdict.INFRA_FAILURE, Cause.SANDBOX_LOST_IN_VERIFIER),
        (acted(None, engine_error="gone"), Verdict.INFRA_FAILURE, Cause.ENGINE_LOST),
        (acted(None, engine_refusal="too long"), Verdict.UNCERTAIN, Cause.ENGINE_REFUSED),
        (
            acted(verification=verified(problem="timed_out"), alive_after=True),
            Verdict.UNCERTAIN,
            Cause.VERIFIER_TIMEOUT,
        ),
        (
            acted(verification=verified(problem="timed_out"), alive_after=False),
            Verdict.INFRA_FAILURE,
            Cause.SANDBOX_LOST_IN_VERIFIER,
        ),
        *[
            (acted(verification=verified(problem=p), alive_after=True), Verdict.UNCERTAIN, Cause.VERIFIER_NO_REWARD)
            for p in ("missing", "empty", "not_a_number", "not_finite", "unreadable")
        ],
    ],
)
def test_evidence_decides(evidence: Evidence, verdict: Verdict, cause: Cause) -> None:
    assert decide(evidence) == (verdict, cause)


def test_only_verdicts_with_a_verifiers_reward_are_usable() -> None:
    assert {v for v in Verdict if v.usable} == {Verdict.SUCCESS, Verdict.MODEL_FAILURE}
