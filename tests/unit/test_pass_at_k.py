"""pass@k by hand and by enumeration, and intervals that cover what they claim to."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from agentrl.controller.evaluation.pass_at_k import estimate, mean, pass_at_k, wilson


@pytest.mark.parametrize(("num_samples", "num_passed", "k"), [(5, 2, 1), (5, 2, 3), (6, 1, 4), (4, 4, 2), (4, 0, 4)])
def test_it_is_the_share_of_all_choices_of_k_samples_with_one_that_passes(
    num_samples: int, num_passed: int, k: int
) -> None:
    samples = [number < num_passed for number in range(num_samples)]
    choices = list(itertools.combinations(samples, k))
    assert pass_at_k(num_samples, num_passed, k) == pytest.approx(sum(map(any, choices)) / len(choices))


def test_it_is_unbiased_where_the_plug_in_estimate_is_not() -> None:
    random, p, n, k = Random(0), 0.2, 6, 4
    drawn = [sum(random.random() < p for _ in range(n)) for _ in range(20_000)]
    truth = 1 - (1 - p) ** k
    assert sum(pass_at_k(n, c, k) for c in drawn) / len(drawn) == pytest.approx(truth, abs=0.01)
    assert abs(sum(1 - (1 - c / n) ** k for c in drawn) / len(drawn) - truth) > 0.03


def test_wilson_is_the_published_interval() -> None:
    # Newcombe, Statistics in Medicine 17 (1998), table I, method 3: 81 of 263 and 0 of 20.
    assert wilson(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)


def test_tasks_with_fewer_than_k_samples_are_left_out() -> None:
    counts = {"a": (4, 2), "b": (1, 1)}
    found = estimate(counts, 2)
    assert found is not None and found.num_tasks == 1
    assert found.value == pytest.approx(1 - 1 / 6)
    assert estimate(counts, 5) is None
    assert mean([]) is None


@pytest.mark.parametrize("scores", [[1.0] * 8, [0.0] * 8, [0.5] * 8])
def test_equal_scores_of_few_tasks_prove_little(scores: list[float]) -> None:
    found = mean(scores)
    assert found is not None
    assert found.high - found.low > 0.3
    assert found.low <= found.value <= found.high


def test_more_samples_of_the_same_tasks_do_not_narrow_what_we_know_of_tasks() -> None:
    few = estimate({f"t{n}": (10, 10 if n % 2 else 1) for n in range(10)}, 1)
    many = estimate({f"t{n}": (1000, 1000 if n % 2 else 100) for n in range(10)}, 1)
    assert few is not None and many is not None
    assert (few.method, many.method) == ("bootstrap", "bootstrap")
    assert few.high - few.low == pytest.approx(many.high - many.low, rel=0.01)


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    random, held = Random(1), 0
    for _ in range(200):
        rates = [random.betavariate(2, 2) for _ in range(40)]  # their mean is 0.5
        counts = {f"t{n}": (8, sum(random.random() < rate for _ in range(8))) for n, rate in enumerate(rates)}
        found = estimate(counts, 1)
        assert found is not None
        held += found.low <= 0.5 <= found.high
    assert 180 <= held <= 198
