"""From evidence to verdict and cause: discard only what the policy cannot have caused."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from agentrl.rollout.evidence import Commands, End, Evidence, Harness, Probes, StepScore
from agentrl.rollout.verdict import CLOCK_JUMP_S, Cause, Verdict, decide, reward
from agentrl.sandbox.death import Death
from agentrl.tasks.task import Verification

S, M, X, U = Verdict.SUCCESS, Verdict.MODEL_FAILURE, Verdict.INFRA_FAILURE, Verdict.UNCERTAIN


def said(reward: float | None = None, problem: str | None = None, *, started: bool = True) -> Verification:
    return Verification(reward=reward, problem=problem, started=started, output="", duration_s=1.0)


def acted(end: End | None = End.FINISHED, **fields: Any) -> Evidence:
    return Evidence(sandbox_started=True, end=end, **fields)


def lost(death: Death | None, **fields: Any) -> Evidence:
    return acted(None, sandbox_error="gone", death=death, alive_after=False, running="make", **fields)


def silent(problem: str, **fields: Any) -> Evidence:
    """The verifier gave no reward in a healthy sandbox."""
    return acted(verification=said(problem=problem), alive_after=True, **fields)


class Case(NamedTuple):
    what: str
    evidence: Evidence
    verdict: Verdict
    cause: Cause


CASES = [
    Case("the verifier gave full reward", acted(verification=said(1.0)), S, Cause.REWARDED),
    Case("more than full reward", acted(verification=said(2.0)), S, Cause.REWARDED),
    Case("no reward earned", acted(verification=said(0.0)), M, Cause.UNREWARDED),
    Case("half of it", acted(verification=said(0.5)), M, Cause.UNREWARDED),
    Case("a negative reward", acted(verification=said(-1.0)), M, Cause.UNREWARDED),
    # Budgets: the state that was left is graded.
    Case("out of time", acted(End.TIME_BUDGET, verification=said(0.0)), M, Cause.UNREWARDED),
    Case("out of tokens, solved", acted(End.TOKEN_BUDGET, verification=said(1.0)), S, Cause.REWARDED),
    Case("out of turns", acted(End.TURN_BUDGET, verification=said(0.0)), M, Cause.UNREWARDED),
    # What agents do to a sandbox that lives on: it is graded, and counts.
    Case(
        "an endless loop, killed at the time limit",
        acted(End.TURN_BUDGET, verification=said(0.0), commands=Commands(num_run=3, num_timed_out=3)),
        M,
        Cause.UNREWARDED,
    ),
    Case(
        "a command timeout in a healthy sandbox, then solved",
        acted(verification=said(1.0), commands=Commands(num_run=2, num_timed_out=1)),
        S,
        Cause.REWARDED,
    ),
    Case(
        "a fork bomb, held by the limit of processes",
        acted(verification=said(0.0), commands=Commands(num_run=1, num_timed_out=1, num_leftover=128)),
        M,
        Cause.UNREWARDED,
    ),
    Case(
        "a memory bomb, of which the sandbox killed a process",
        acted(verification=said(0.0), commands=Commands(num_run=1, num_oom=1, num_signalled=1)),
        M,
        Cause.UNREWARDED,
    ),
    Case(
        "a memory bomb that took the whole sandbox down",
        lost(Death.OUT_OF_MEMORY, commands=Commands(num_oom=1)),
        M,
        Cause.SANDBOX_OUT_OF_MEMORY,
    ),
    Case(
        "a disk that the agent filled, for which the cluster took the sandbox away",
        lost(Death.OUT_OF_DISK),
        M,
        Cause.SANDBOX_OUT_OF_DISK,
    ),
    Case("a full disk", acted(verification=said(0.0)), M, Cause.UNREWARDED),
    Case(
        "a full disk, on which the tests found no room, though they do elsewhere",
        acted(
            verification=said(problem="not_started", started=False),
            alive_after=True,
            control=said(0.0),
            again=said(problem="not_started", started=False),
        ),
        M,
        Cause.VERIFIER_BROKEN_BY_AGENT,
    ),
    Case(
        "it killed its own shell",
        acted(verification=said(0.0), commands=Commands(num_run=1, num_signalled=1)),
        M,
        Cause.UNREWARDED,
    ),
    Case("it killed the first process from inside", lost(Death.ENDED_INSIDE), M, Cause.SANDBOX_ENDED_BY_AGENT),
    Case(
        "it deleted /tests, or wrote a reward: both are made anew", acted(verification=said(0.0)), M, Cause.UNREWARDED
    ),
    # What the machinery does.
    Case("no sandbox", Evidence(sandbox_error="no start"), X, Cause.SANDBOX_START),
    Case("no image", Evidence(sandbox_error="pull", death=Death.IMAGE), X, Cause.SANDBOX_IMAGE),
    Case("killed from outside", lost(Death.KILLED), X, Cause.SANDBOX_KILLED),
    Case(
        "killed from outside, while a memory bomb was held by its limit",
        lost(Death.KILLED, commands=Commands(num_run=1, num_oom=1)),
        X,
        Cause.SANDBOX_KILLED,
    ),
    Case(
        "the probe was dead while the command ran",
        lost(Death.SILENT, probes=Probes(num_asked=2, num_unanswered=2)),
        X,
        Cause.SANDBOX_SILENT,
    ),
    Case("too old", lost(Death.EXPIRED), X, Cause.SANDBOX_EXPIRED),
    Case("evicted", lost(Death.EVICTED), X, Cause.SANDBOX_EVICTED),
    Case("the node was lost", lost(Death.NODE_LOST), X, Cause.SANDBOX_EVICTED),
    Case("the supervisor ended", lost(Death.UNREACHABLE), X, Cause.SANDBOX_LOST),
    Case("lost, and nobody knows how", lost(None), X, Cause.SANDBOX_LOST),
    Case("engine gone mid-turn", acted(None, engine_error="gone"), X, Cause.ENGINE_LOST),
    Case("engine gone before the first turn", Evidence(engine_error="gone"), X, Cause.ENGINE_LOST),
    Case("request refused", acted(None, engine_refusal="too long"), U, Cause.ENGINE_REFUSED),
    *[
        Case(
            f"lost while the verifier ran: {death}",
            acted(sandbox_error="gone", death=death, alive_after=False),
            X,
            Cause.SANDBOX_LOST_IN_VERIFIER,
        )
        for death in (None, Death.KILLED, Death.EVICTED, Death.UNREACHABLE, Death.EXPIRED)
    ],
    *[
        Case(
            f"{death} while the verifier ran: its doing, or that of what the agent left",
            acted(sandbox_error="gone", death=death, alive_after=False),
            U,
            Cause.VERIFIER_ENDED_SANDBOX,
        )
        for death in (Death.OUT_OF_MEMORY, Death.OUT_OF_DISK, Death.ENDED_INSIDE)
    ],
    Case("dead after the reward was read", acted(verification=said(0.0), alive_after=False), M, Cause.UNREWARDED),
    Case(
        "dead after a verifier that gave none",
        acted(verification=said(problem="missing"), alive_after=False),
        X,
        Cause.SANDBOX_LOST_IN_VERIFIER,
    ),
    Case(
        "the verifier hung because the sandbox was dead",
        acted(verification=said(problem="timed_out"), alive_after=False),
        X,
        Cause.SANDBOX_LOST_IN_VERIFIER,
    ),
    # Verifiers that fail in a healthy sandbox, untouched ones included.
    Case("the verifier hangs", silent("timed_out", control=said(problem="timed_out")), U, Cause.VERIFIER_TIMEOUT),
    Case("it hangs, and no control could be had", silent("timed_out"), U, Cause.VERIFIER_TIMEOUT),
    *[
        Case(
            f"the verifier gives: {problem}",
            silent(problem, control=said(problem=problem)),
            U,
            Cause.VERIFIER_NO_REWARD,
        )
        for problem in ("missing", "empty", "not_a_number", "not_finite", "unreadable", "ambiguous")
    ],
    Case(
        "there are no tests",
        acted(verification=said(problem="no_tests", started=False), alive_after=True),
        U,
        Cause.VERIFIER_NOT_STARTED,
    ),
    Case("the tests lack a tool", silent("missing_tool"), U, Cause.VERIFIER_MISSING_TOOL),
    # Verifiers that fail only on what the agent left.
    Case(
        "the verifier needs what the agent broke",
        silent("missing", control=said(0.0), again=said(problem="missing")),
        M,
        Cause.VERIFIER_BROKEN_BY_AGENT,
    ),
    Case(
        "the agent's work makes the verifier hang",
        silent("timed_out", control=said(0.0), again=said(problem="timed_out")),
        M,
        Cause.VERIFIER_BROKEN_BY_AGENT,
    ),
    Case(
        "the verifier failed once and not again",
        silent("missing", control=said(0.0), again=said(1.0)),
        U,
        Cause.VERIFIER_FLAKY,
    ),
    Case(
        "the sandbox was lost before it could be tried again",
        silent("missing", control=said(0.0)),
        U,
        Cause.VERIFIER_NO_REWARD,
    ),
    # The clock.
    Case("the clock jumped, and it passed", acted(verification=said(1.0), clock_jump_s=3600.0), S, Cause.REWARDED),
    Case("the clock jumped ahead", acted(verification=said(0.0), clock_jump_s=3600.0), U, Cause.CLOCK_JUMPED),
    Case("the clock jumped back", acted(verification=said(0.0), clock_jump_s=-3600.0), U, Cause.CLOCK_JUMPED),
    Case("the clock was slewed", acted(verification=said(0.0), clock_jump_s=CLOCK_JUMP_S), M, Cause.UNREWARDED),
    # Several steps: what stands is what they came to together; a later one that is lost takes all along.
    Case(
        "two steps, one passed",
        acted(verification=said(0.5), steps=(StepScore(step="a", reward=1.0, problem=None),)),
        M,
        Cause.UNREWARDED,
    ),
    Case("lost in the second step", lost(Death.KILLED, steps=()), X, Cause.SANDBOX_KILLED),
    Case(
        "the set-up of a step failed",
        acted(End.NOT_BEGUN, verification=said(problem="not_started", started=False), alive_after=True),
        U,
        Cause.VERIFIER_NOT_STARTED,
    ),
]
HARNESS_CASES: list[tuple[Any, ...]] = [
    ("never asked", Harness(exit_code=1), {}, X, Cause.HARNESS_NOT_STARTED),
    ("ended at once, in peace", Harness(exit_code=0), {}, X, Cause.HARNESS_NOT_STARTED),
    ("its time was up before it asked", Harness(), {}, X, Cause.HARNESS_NOT_STARTED),
    ("crashed", Harness(exit_code=1, num_answered=2), {}, U, Cause.HARNESS_CRASHED),
    ("killed", Harness(exit_code=-9, num_answered=2), {}, X, Cause.HARNESS_KILLED),
    ("killed under a shell", Harness(exit_code=137, num_answered=2), {}, X, Cause.HARNESS_KILLED),
    ("python's exit(-1)", Harness(exit_code=255, num_answered=2), {}, U, Cause.HARNESS_CRASHED),
    (
        "its sandbox ran out of memory before the policy was asked",
        Harness(),
        {"sandbox_error": "gone", "death": Death.OUT_OF_MEMORY},
        X,
        Cause.SANDBOX_LOST,
    ),
    (
        "its sandbox ran out of memory afterwards",
        Harness(num_answered=1),
        {"sandbox_error": "gone", "death": Death.OUT_OF_MEMORY},
        M,
        Cause.SANDBOX_OUT_OF_MEMORY,
    ),
]
CASES += [Case(what, acted(None, harness=harness, **seen), *end) for what, harness, seen, *end in HARNESS_CASES]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_evidence_decides(case: Case) -> None:
    assert decide(case.evidence) == (case.verdict, case.cause)


def test_the_table_is_long_and_meets_every_cause() -> None:
    assert len(CASES) >= 40
    assert {case.cause for case in CASES} == set(Cause)


def test_only_verdicts_with_a_reward_are_usable() -> None:
    assert {v for v in Verdict if v.usable} == {S, M}


def test_a_usable_verdict_has_the_verifiers_reward_or_none_at_all() -> None:
    for case in CASES:
        verification = case.evidence.verification
        if case.verdict.usable:
            written = verification.reward if verification else None
            assert reward(case.evidence) == (0.0 if written is None else written), case.what


def test_every_cause_and_every_death_says_what_it_is() -> None:
    """A docstring behind each, as the page of verdicts promises."""
    import ast
    import inspect

    for kind in (Cause, Verdict, End, Death):
        (body,) = ast.parse(inspect.getsource(kind)).body
        assert isinstance(body, ast.ClassDef)
        for statement, after in zip(body.body, [*body.body[1:], None], strict=True):
            if isinstance(statement, ast.Assign):
                assert isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant), ast.unparse(statement)


def test_a_harness_that_did_its_part_is_graded() -> None:
    evidence = acted(End.TURN_BUDGET, harness=Harness(num_answered=3), verification=said(0.0))
    assert decide(evidence) == (M, Cause.UNREWARDED)
