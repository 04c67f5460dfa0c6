"""Small pure decisions: order of tasks, active time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentrl.controller.scheduling.task_order import task_index


@given(st.integers(1, 50), st.integers(0, 100))
def test_every_pass_over_the_tasks_launches_each_once(num_tasks: int, seed: int) -> None:
    order = [task_index(seq, num_tasks=num_tasks, seed=seed) for seq in range(2 * num_tasks)]
    assert sorted(order[:num_tasks]) == sorted(order[num_tasks:]) == list(range(num_tasks))


def test_order_of_tasks_depends_on_the_seed_and_on_the_pass() -> None:
    orders = {tuple(task_index(p * 20 + i, num_tasks=20, seed=s) for i in range(20)) for s in (0, 1) for p in (0, 1)}
    assert len(orders) == 4
