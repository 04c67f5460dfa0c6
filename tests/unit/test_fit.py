"""Laws from measured numbers, and how well they fit."""

from __future__ import annotations

import statistics
from random import Random

import numpy as np
import pytest

from agentrl.simulation.fit import (
    fit_law,
    fit_success,
    group_share,
    ks_distance,
    least_squares,
    overlapping,
    quantiles,
    service_times,
)
from agentrl.simulation.laws import Beta, Constant, LogNormal, Quantiles, Uniform


def drawn(count: int = 2000) -> list[float]:
    random, law = Random(1), LogNormal(median=3, sigma=1.2)
    return [law.sample(random) for _ in range(count)]


def test_quantiles_give_back_what_they_were_made_from() -> None:
    values = drawn()
    law = fit_law(values)
    assert isinstance(law, Quantiles)
    assert ks_distance(law, values) < 0.05
    assert (law.values[0], law.cap) == (min(values), max(values))
    random = Random(0)
    assert statistics.mean(law.sample(random) for _ in range(20_000)) == pytest.approx(statistics.mean(values), rel=0.1)


def test_the_wrong_law_is_far_off() -> None:
    assert ks_distance(Uniform(low=0, high=3), drawn()) > 0.3
    assert ks_distance(Constant(value=5), [5.0, 5.0]) == 0


@pytest.mark.parametrize(("values", "value"), [([], 0.0), ([2.0, 2.0, 2.0, 2.0], 2.0), ([1.0, 3.0], 2.0)])
def test_few_or_equal_numbers_are_a_constant(values: list[float], value: float) -> None:
    assert fit_law(values) == Constant(value=value)


def test_a_normal_variable_asks_quantiles_for_its_share() -> None:
    law = quantiles([0.0, 10.0])
    assert (law.at(0.0), law.at_share(0.25), law.at(9.0)) == (5.0, 2.5, 10.0)


def test_waiting_for_a_slot_is_no_part_of_a_start() -> None:
    """Four jobs of one second, asked for at once, two at a time."""
    assert service_times([0, 0, 0, 0], [1, 1, 2, 2], at_once=2) == [1, 1, 1, 1]
    assert service_times([0, 0, 5], [1, 2, 7], at_once=1) == [1, 1, 2]


def test_least_squares_finds_coefficients_of_at_least_zero() -> None:
    random = np.random.default_rng(0)
    columns = random.uniform(0, 1, size=(500, 3))
    truth = np.array([2.0, 0.0, 5.0])
    assert least_squares(columns, columns @ truth) == pytest.approx(truth, abs=1e-6)
    against = least_squares(columns, columns @ np.array([2.0, -3.0, 5.0]))
    assert (against >= 0).all() and against[1] == 0


def test_overlap_counts_who_is_open_beside_an_interval() -> None:
    assert overlapping([0, 0, 10], [10, 5, 20]) == pytest.approx([1.5, 2.0, 1.0])


def test_success_is_the_law_of_the_probabilities_and_not_of_what_was_counted() -> None:
    random = Random(0)
    groups = [[float(random.random() < p) for _ in range(8)] for p in (random.betavariate(2, 3) for _ in range(3000))]
    law = fit_success(groups)
    assert isinstance(law, Beta)
    assert (law.a, law.b) == (pytest.approx(2, rel=0.15), pytest.approx(3, rel=0.15))
    assert fit_success([[1.0, 0.0], [0.0, 1.0]]) == Constant(value=0.5)


def test_what_a_group_has_in_common_is_told_from_what_its_members_have() -> None:
    random = Random(0)
    groups = []
    for _ in range(400):
        common = random.gauss(0, 1)
        groups.append([2.718 ** (common + random.gauss(0, 1)) for _ in range(8)])
    assert group_share(groups) == pytest.approx(0.5, abs=0.07)
    assert group_share([[1.0, 1.0], [1.0, 1.0]]) == 0
