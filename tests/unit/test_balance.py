"""When swing engines train and when they generate: the decision, and what it is made of."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.controller.balance.balance import MARGIN, Choice, Situation, after_training, when_ready
from agentrl.controller.balance.measured import LAST, Measured, Mode

HYBRID = Situation(
    num_swing=2,
    num_dedicated=6,
    batch_ready=False,
    num_ready=1,
    groups_per_step=4,
    open_groups=15,
    spare_lag=4,
    rate_all=800.0,
    rate_dedicated=600.0,
    remaining_tokens=480_000.0,
    there_s=3.0,
    back_s=5.0,
    train_s=100.0,
)


def test_swing_engines_return_when_the_next_batch_comes_sooner_by_more_than_the_switches_cost() -> None:
    decision = after_training(HYBRID)
    assert decision.choice is Choice.RETURN
    assert decision.predicted_s == pytest.approx(5 + (480_000 - 600 * 5) / 800 + 3)
    assert decision.alternative_s == pytest.approx(800)
    assert decision.gain_s == pytest.approx(195.75)


def test_swing_engines_stay_when_a_batch_is_ready_or_nearly() -> None:
    assert after_training(replace(HYBRID, batch_ready=True)).choice is Choice.STAY
    decision = after_training(replace(HYBRID, remaining_tokens=6_000.0))
    assert decision.choice is Choice.STAY
    assert decision.predicted_s == pytest.approx(10)


def test_swing_engines_return_when_nobody_else_generates_or_nothing_is_known() -> None:
    assert after_training(replace(HYBRID, num_dedicated=0)).choice is Choice.RETURN
    assert after_training(replace(HYBRID, rate_all=None, rate_dedicated=None)).choice is Choice.RETURN
    assert after_training(replace(HYBRID, rate_dedicated=0.0)).choice is Choice.RETURN
    assert after_training(replace(HYBRID, remaining_tokens=None)).choice is Choice.RETURN


def test_a_rate_that_was_not_measured_yet_is_the_dedicated_engines_share() -> None:
    assert after_training(replace(HYBRID, rate_dedicated=None)) == after_training(HYBRID)


@given(
    remaining=st.floats(0, 1e7),
    rate_dedicated=st.floats(1, 1e4),
    extra=st.floats(0, 1e4),
    there_s=st.floats(0, 100),
    back_s=st.floats(0, 100),
)
def test_a_return_pays_its_switches_and_the_margin(
    remaining: float, rate_dedicated: float, extra: float, there_s: float, back_s: float
) -> None:
    decision = after_training(
        replace(
            HYBRID,
            remaining_tokens=remaining,
            rate_dedicated=rate_dedicated,
            rate_all=rate_dedicated + extra,
            there_s=there_s,
            back_s=back_s,
        )
    )
    assert decision.gain_s is not None
    if decision.choice is Choice.RETURN:
        assert decision.gain_s > MARGIN * (there_s + back_s)
    else:
        assert decision.gain_s >= -MARGIN * (there_s + back_s) - 1e-6 * remaining


def test_without_swing_engines_there_is_nothing_to_switch() -> None:
    alone = replace(HYBRID, num_swing=0)
    assert after_training(alone).choice is Choice.STAY
    assert after_training(alone).predicted_s == pytest.approx(600)
    assert when_ready(replace(alone, num_ready=4)).choice is Choice.TRAIN


@pytest.mark.parametrize(
    ("change", "choice"),
    [
        ({}, Choice.TRAIN),
        ({"there_s": 100.0, "back_s": 200.0}, Choice.GENERATE),
        ({"there_s": 100.0, "back_s": 200.0, "num_ready": 8}, Choice.TRAIN),
        ({"there_s": 100.0, "back_s": 200.0, "spare_lag": 0}, Choice.TRAIN),
        ({"there_s": 100.0, "back_s": 200.0, "open_groups": 7}, Choice.TRAIN),
        ({"there_s": 100.0, "back_s": 200.0, "train_s": None}, Choice.TRAIN),
    ],
)
def test_a_second_batch_is_waited_for_only_when_switches_are_dear_and_it_has_room(
    change: dict[str, float], choice: Choice
) -> None:
    assert when_ready(replace(HYBRID, **{"num_ready": 4, **change})).choice is choice  # type: ignore[arg-type]


def test_rates_are_measured_by_who_generated() -> None:
    measured = Measured(0.0, 0)
    measured.change(Mode.ALL, 10.0, 0)
    measured.change(Mode.NOBODY, 20.0, 1000)
    measured.change(Mode.DEDICATED, 25.0, 1000)
    assert measured.rate(Mode.ALL, 25.0, 1000) == 100
    assert measured.rate(Mode.DEDICATED, 25.0, 1000) is None
    assert measured.rate(Mode.DEDICATED, 30.0, 1200) == 40


def test_time_in_which_nothing_was_sampled_is_no_rate() -> None:
    measured = Measured(0.0, 0)
    measured.change(Mode.ALL, 5.0, 0)
    assert measured.rate(Mode.ALL, 10.0, 0) is None


def test_predictions_are_corrected_by_what_the_last_ones_came_to_within_bounds() -> None:
    measured = Measured(0.0, 0)
    measured.batch(1000)
    assert measured.remaining(1000, missing=1.0) == 1000
    measured.correct(100.0, 25.0)
    assert measured.remaining(1000, missing=1.0) == 500
    measured.correct(0.0, 25.0)
    assert measured.remaining(1000, missing=1.0) == 500
    for _ in range(9):
        measured.correct(1.0, 1e6)
    assert measured.remaining(1000, missing=1.0) == 4000


def test_rates_and_sizes_follow_a_drift_within_a_few_steps() -> None:
    measured = Measured(0.0, 0)
    now, tokens = 0.0, 0
    for rate in [100] * 6 + [50] * LAST:
        measured.change(Mode.ALL, now, tokens)
        now, tokens = now + 10, tokens + 10 * rate
        measured.batch(tokens)
        measured.change(Mode.NOBODY, now, tokens)
        now += 1
    assert measured.rate(Mode.ALL, now, tokens) == 50
    assert measured.remaining(tokens, missing=1.0) == 500
    assert measured.remaining(tokens + 400, missing=1.0) == 100
    assert measured.remaining(tokens + 700, missing=0.5) == pytest.approx(25)
