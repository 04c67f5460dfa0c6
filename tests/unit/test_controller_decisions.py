"""Small pure decisions: order of tasks, circuit breaker, active time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentrl.controller.breaker import WINDOW, Breaker
from agentrl.controller.task_order import task_index
from agentrl.rollout.active_time import ActiveTime
from agentrl.rollout.verdict import Cause, Verdict


@given(st.integers(1, 50), st.integers(0, 100))
def test_every_pass_over_the_tasks_launches_each_once(num_tasks: int, seed: int) -> None:
    order = [task_index(seq, num_tasks=num_tasks, seed=seed) for seq in range(2 * num_tasks)]
    assert sorted(order[:num_tasks]) == sorted(order[num_tasks:]) == list(range(num_tasks))


def test_order_of_tasks_depends_on_the_seed_and_on_the_pass() -> None:
    orders = {tuple(task_index(p * 20 + i, num_tasks=20, seed=s) for i in range(20)) for s in (0, 1) for p in (0, 1)}
    assert len(orders) == 4


def test_breaker_says_nothing_before_its_window_is_full() -> None:
    breaker = Breaker(infra_share_limit=0.1, uncertain_share_limit=0.1)
    for _ in range(WINDOW - 1):
        breaker.add(Verdict.INFRA_FAILURE, Cause.SANDBOX_LOST)
    assert breaker.tripped() is None


def test_breaker_names_share_limit_and_causes() -> None:
    breaker = Breaker(infra_share_limit=0.5, uncertain_share_limit=0.25)
    for index in range(WINDOW):
        lost = index % 4 != 0
        breaker.add(Verdict.INFRA_FAILURE if lost else Verdict.SUCCESS, Cause.SANDBOX_START if lost else Cause.REWARDED)
    tripped = breaker.tripped()
    assert tripped is not None and tripped.verdict is Verdict.INFRA_FAILURE
    assert tripped.problem == "75% of the last 64 episodes are infra_failure (limit 50%): sandbox_start 48"


def test_breaker_forgets_what_left_its_window() -> None:
    breaker = Breaker(infra_share_limit=0.5, uncertain_share_limit=0.25)
    for _ in range(WINDOW):
        breaker.add(Verdict.UNCERTAIN, Cause.VERIFIER_TIMEOUT)
    for _ in range(WINDOW):
        breaker.add(Verdict.MODEL_FAILURE, Cause.UNREWARDED)
    assert breaker.tripped() is None


def test_active_time_stands_still_while_paused() -> None:
    active = ActiveTime()
    assert active.read(10.0) == 10.0
    active.pause(10.0)
    active.pause(12.0)
    assert active.read(15.0) == 10.0
    active.resume(20.0)
    active.resume(21.0)
    assert active.read(25.0) == 15.0
