"""How many episodes act at once: by prediction, corrected by what the engines show; never none, never swinging."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.controller.scheduling.admission import (
    HIGHEST_FACTOR,
    LOOKS,
    LOWEST_FACTOR,
    LoadFactor,
    expected_peak,
    room,
)

NEW = 100.0


def fitting(budget: float, *, num_live: int = 0, limit: int = 1000, floor: int = 1) -> int:
    """Room beside live episodes that have just begun."""
    return room(
        num_live=num_live,
        used=0.0,
        remaining=num_live * NEW,
        new=NEW,
        budget_tokens=budget,
        limit=limit,
        floor=floor,
    )


def test_the_peak_is_now_where_contexts_are_longer_than_what_they_grow_by() -> None:
    assert expected_peak(500.0, 300.0) == 500.0
    assert expected_peak(500.0, 500.0) == 500.0


def test_the_peak_is_what_a_simulated_set_of_episodes_comes_to() -> None:
    rng = random.Random(0)
    contexts = [rng.uniform(0, 100) for _ in range(4000)]
    ends = [rng.expovariate(1 / 200.0) for _ in contexts]
    held = [
        sum(c + x for c, end in zip(contexts, ends, strict=True) if end > x)
        for x in (float(t) for t in range(0, 600, 10))
    ]
    assert expected_peak(sum(contexts), 200.0 * len(contexts)) == pytest.approx(max(held), rel=0.03)


@given(st.floats(0, 1e7), st.floats(0, 1e7), st.floats(0, 1e5), st.floats(0, 1e5))
def test_another_episode_never_lowers_the_peak(used: float, remaining: float, prompt: float, growth: float) -> None:
    before = expected_peak(used, remaining)
    assert expected_peak(used + prompt, remaining + growth) >= before * (1 - 1e-12)


def test_episodes_start_until_their_expected_peak_fills_the_budget() -> None:
    few, many = fitting(1000.0), fitting(2000.0)
    assert 0 < few < many
    assert fitting(1000.0, num_live=few) == 0


def test_admission_stops_at_the_limit() -> None:
    assert fitting(1e9, num_live=3, limit=4) == 1
    assert fitting(1e9, num_live=5, limit=4) == 0


def test_one_episode_an_engine_may_always_live_and_none_without_an_engine() -> None:
    assert fitting(1.0, floor=2) == 2
    assert fitting(1.0, num_live=2, floor=2) == 0
    assert fitting(0.0) == 0


class Plant:
    """Engines that hold `capacity` episodes; more wait. Starts follow the factor, ends take their time."""

    def __init__(self, capacity: int, *, live: int = 0) -> None:
        self.capacity = capacity
        self.live = live
        self.factor = LoadFactor()

    def run(self, looks: int, *, predicted: int = 100, limit: int = 400) -> list[float]:
        """`predicted`: episodes that fill the budget at factor 1."""
        values = []
        for _ in range(looks):
            self.live -= max(self.live // 30, 1)
            self.live = max(self.live, min(int(predicted * self.factor.value), limit))
            self.factor.look(
                num_live=self.live,
                num_waiting=max(self.live - self.capacity, 0),
                fill=self.live / predicted,
                limited=self.live < limit,
            )
            values.append(self.factor.value)
        return values


def test_the_factor_finds_what_engines_hold_from_below_and_from_above() -> None:
    for start in (0, 300):
        plant = Plant(150, live=start)
        settled = plant.run(600)[-200:]
        assert min(settled) >= 1.4 and max(settled) <= 1.7


@pytest.mark.parametrize(("before", "after"), [(200, 80), (80, 200)])
def test_a_step_of_load_is_followed_without_swinging(before: int, after: int) -> None:
    plant = Plant(before)
    plant.run(600)
    plant.capacity = after
    values = plant.run(900)
    settled = values[-300:]
    assert max(settled) - min(settled) <= 0.2 * max(settled)
    assert after / 100 <= min(settled) and max(settled) <= 1.2 * after / 100
    low, high = sorted((before / 100, after / 100))
    assert low * 0.9 <= min(values) and max(values) <= high * 1.2


def test_engines_that_hold_nothing_never_bring_it_to_zero_and_it_comes_back() -> None:
    plant = Plant(0)
    assert plant.run(2000)[-1] == LOWEST_FACTOR
    plant.capacity = 100
    assert plant.run(600)[-1] >= 0.9


def test_engines_that_hold_everything_do_not_raise_it_beyond_its_range() -> None:
    assert max(Plant(10**9).run(2000, limit=10**9)) == HIGHEST_FACTOR


def test_one_look_is_no_reason_to_act() -> None:
    factor = LoadFactor()
    for _ in range(10):
        for _ in range(LOOKS - 1):
            assert not factor.look(num_live=10, num_waiting=9, fill=1.0, limited=True)
        factor.look(num_live=10, num_waiting=0, fill=1.0, limited=False)
    assert factor.value == 1.0


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 80), st.floats(0, 5), st.booleans()), max_size=300))
def test_whatever_is_seen_it_stays_in_its_range(looks: list[tuple[int, int, float, bool]]) -> None:
    factor = LoadFactor()
    for num_live, num_waiting, fill, limited in looks:
        factor.look(num_live=num_live, num_waiting=num_waiting, fill=fill, limited=limited)
        assert LOWEST_FACTOR <= factor.value <= HIGHEST_FACTOR
