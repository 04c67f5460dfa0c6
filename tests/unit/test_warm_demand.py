"""What a warm pool measures."""

from __future__ import annotations

import math
from random import Random

import pytest

from agentrl.sandbox.provider import Image, SandboxSpec
from agentrl.sandbox.warm_demand import Failures, LaunchRate, StartTimes, backoff_s, level
from agentrl.sandbox.warm_figures import Acquisitions, Counts

KIND = SandboxSpec(image=Image())


@pytest.mark.parametrize("every_s", [0.5, 4.0, 30.0])
def test_the_rate_is_that_of_a_steady_stream_from_its_start_on(every_s: float) -> None:
    rate = LaunchRate()
    for number in range(200):
        rate.add(1000 + number * every_s)
        if number * every_s > 20 * every_s:
            assert rate.per_s(1000 + number * every_s) == pytest.approx(1 / every_s, rel=0.3)


def test_the_rate_falls_when_nothing_is_asked_for() -> None:
    rate = LaunchRate()
    assert rate.per_s(5.0) == 0.0
    for _ in range(100):
        rate.add(10.0)
    assert rate.per_s(10.0) > rate.per_s(130.0) > rate.per_s(1000.0) > 0
    assert rate.per_s(3000.0) < 0.001


def test_the_level_is_what_is_due_and_what_is_asked_for_meanwhile() -> None:
    assert level(0.0, 30.0, 5) == 5
    assert level(0.5, 32.0, 5) == 5 + 16 + 2 * 4
    assert level(0.01, 0.05, 0) == 1, "the next one at least"


def test_no_start_is_overdue_before_some_were_seen() -> None:
    times = StartTimes()
    assert times.lead_s == 0.0
    for _ in range(7):
        times.add(10.0)
    assert times.patience_s(0) == math.inf
    times.add(10.0)
    assert times.patience_s(0) == 15.0


def test_starts_of_no_time_make_nobody_impatient() -> None:
    times = StartTimes()
    for _ in range(8):
        times.add(0.0)
    assert times.patience_s(0) == 5.0


def test_a_few_that_hang_do_not_make_it_patient_and_slower_kinds_are_given_more_time() -> None:
    times, random = StartTimes(), Random(0)
    for _ in range(64):
        times.add(random.uniform(120, 600) if random.random() < 0.03 else random.lognormvariate(math.log(25), 0.6))
    assert 45 < times.patience_s(0) < 110
    assert times.patience_s(2) == 4 * times.patience_s(0)


def test_backoff_doubles_is_spread_and_has_an_end() -> None:
    assert [backoff_s(failures, 1.0) for failures in (1, 2, 3, 4)] == [0.5, 1.0, 2.0, 4.0]
    assert backoff_s(3, 0.0) == 1.0
    assert backoff_s(1000, 1.0) == 60.0


def test_failures_count_until_one_succeeds() -> None:
    failures = Failures()
    assert failures.ready_at(KIND) == -math.inf
    assert [failures.add(KIND, 100.0, 1.0) for _ in range(3)] == [1, 2, 3]
    assert failures.ready_at(KIND) == 102.0
    failures.forget(KIND)
    assert failures.ready_at(KIND) == -math.inf
    assert failures.add(KIND, 100.0, 1.0) == 1


def test_figures_say_nothing_before_there_was_anything() -> None:
    figures = Acquisitions().figures(Counts(), warm=0)
    assert (figures.hit_rate, figures.waste, figures.acquire_p50_s, figures.acquire_p95_s) == (None,) * 4


def test_figures_are_shares_and_quantiles() -> None:
    acquisitions = Acquisitions()
    for number in range(100):
        acquisitions.add(number / 100)
    figures = acquisitions.figures(Counts(hits=75, misses=25, started=110, unused=11), warm=2)
    assert (figures.hit_rate, figures.waste) == (0.75, 0.1)
    assert (figures.acquire_p50_s, figures.acquire_p95_s) == (0.49, 0.94)
