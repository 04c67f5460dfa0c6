"""The circuit breaker: what makes launching pause, how it is tried again, and when the run gives up."""

from __future__ import annotations

from agentrl.controller.scheduling.breaker import TRIALS, WINDOW, Breaker
from agentrl.rollout.verdict import Cause, Verdict


def breaker(*, max_pauses: int = 2, infra: float = 0.5) -> Breaker:
    return Breaker(infra_share_limit=infra, uncertain_share_limit=0.25, pause_s=10.0, max_pauses=max_pauses)


def lose(broken: Breaker, times: int, *, now: float, began: float | None = None) -> None:
    for _ in range(times):
        broken.add(Verdict.INFRA_FAILURE, Cause.SANDBOX_START, began=now if began is None else began, now=now)


def succeed(broken: Breaker, times: int, *, now: float) -> None:
    for _ in range(times):
        broken.add(Verdict.SUCCESS, Cause.REWARDED, began=now, now=now)


def try_again(broken: Breaker, *, now: float, lost: int) -> None:
    for _ in range(TRIALS):
        broken.launched()
    lose(broken, lost, now=now)
    succeed(broken, TRIALS - lost, now=now)


def test_it_says_nothing_before_its_window_is_full() -> None:
    broken = breaker(infra=0.1)
    lose(broken, WINDOW - 1, now=0.0)
    assert (broken.tripped(), broken.pause, broken.allowed(0.0)) == (None, None, None)


def test_a_pause_names_share_limit_and_causes() -> None:
    broken = breaker()
    succeed(broken, WINDOW // 4, now=5.0)
    lose(broken, WINDOW * 3 // 4, now=5.0)
    assert broken.pause is not None and broken.tripped() is None
    assert (broken.pause.until, broken.pause.seconds) == (15.0, 10.0)
    assert broken.pause.problem == "75% of the last 64 episodes are infra_failure (limit 50%): sandbox_start 48"


def test_nothing_starts_in_a_pause_and_a_few_after_it() -> None:
    broken = breaker()
    lose(broken, WINDOW, now=0.0)
    assert broken.allowed(9.9) == 0
    assert broken.allowed(10.0) == TRIALS
    for _ in range(TRIALS):
        broken.launched()
    assert broken.allowed(11.0) == 0


def test_what_began_before_the_trials_does_not_count() -> None:
    broken = breaker()
    lose(broken, WINDOW, now=0.0)
    lose(broken, 3 * TRIALS, now=11.0, began=9.0)
    assert broken.pause is not None and broken.pause.seconds == 10.0


def test_good_trials_let_all_start_again_and_forget_the_failures() -> None:
    broken = breaker()
    lose(broken, WINDOW, now=0.0)
    try_again(broken, now=10.0, lost=TRIALS // 2)
    assert (broken.pause, broken.allowed(10.0), broken.share(Verdict.INFRA_FAILURE)) == (None, None, 0.0)


def test_bad_trials_pause_for_twice_as_long_and_in_the_end_the_run_gives_up() -> None:
    broken = breaker()
    lose(broken, WINDOW, now=0.0)
    try_again(broken, now=10.0, lost=TRIALS)
    assert broken.pause is not None and (broken.pause.until, broken.pause.seconds) == (30.0, 20.0)
    assert broken.tripped() is None
    try_again(broken, now=30.0, lost=TRIALS)
    tripped = broken.tripped()
    assert tripped is not None and tripped.verdict is Verdict.INFRA_FAILURE
    assert tripped.problem.endswith("sandbox_start 8; launching was paused 2 times before")


def test_a_window_without_trouble_makes_the_next_pause_short_again() -> None:
    broken = breaker()
    lose(broken, WINDOW, now=0.0)
    try_again(broken, now=10.0, lost=0)
    succeed(broken, WINDOW, now=20.0)
    lose(broken, WINDOW, now=30.0)
    assert broken.pause is not None and broken.pause.seconds == 10.0


def test_trouble_before_that_makes_it_longer() -> None:
    broken = breaker()
    lose(broken, WINDOW, now=0.0)
    try_again(broken, now=10.0, lost=0)
    lose(broken, WINDOW, now=20.0)
    assert broken.pause is not None and broken.pause.seconds == 20.0


def test_a_trial_that_was_cancelled_is_made_again() -> None:
    broken = breaker()
    lose(broken, WINDOW, now=0.0)
    for _ in range(TRIALS):
        broken.launched()
    broken.withdrawn(12.0)
    broken.withdrawn(9.0)
    assert broken.allowed(12.0) == 1


def test_without_pauses_the_run_gives_up_at_once() -> None:
    broken = breaker(max_pauses=0)
    lose(broken, WINDOW, now=0.0)
    tripped = broken.tripped()
    assert tripped is not None
    assert tripped.problem == "100% of the last 64 episodes are infra_failure (limit 50%): sandbox_start 64"


def test_waiting_does_not_help_against_uncertain_verdicts() -> None:
    broken = breaker()
    for _ in range(WINDOW):
        broken.add(Verdict.UNCERTAIN, Cause.VERIFIER_TIMEOUT, began=0.0, now=0.0)
    tripped = broken.tripped()
    assert tripped is not None and tripped.verdict is Verdict.UNCERTAIN


def test_it_forgets_what_left_its_window() -> None:
    broken = breaker(infra=0.9)
    lose(broken, WINDOW // 2, now=0.0)
    succeed(broken, 2 * WINDOW, now=0.0)
    assert broken.share(Verdict.INFRA_FAILURE) == 0.0
