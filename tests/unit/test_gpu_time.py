"""What GPUs' time goes to: every lane is always in one use, and the uses add up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.controller.balance.gpu_time import TRAINER, GpuTime, Moment, Use, uses
from agentrl.controller.fleet.state import EngineState

MOMENT = Moment(
    engines={"engine-0": EngineState.FREE, "engine-1": EngineState.BUSY},
    lent=False,
    swing=frozenset({"engine-0"}),
    training=False,
    live=True,
    may_launch=True,
)


@pytest.mark.parametrize(
    ("change", "use"),
    [
        ({}, Use.WAIT_ENVIRONMENTS),
        ({"may_launch": False}, Use.WAIT_STRAGGLERS),
        ({"may_launch": False, "live": False}, Use.IDLE),
        ({"engines": {"engine-0": EngineState.BUSY}}, Use.GENERATE),
        ({"engines": {"engine-0": EngineState.HELD}}, Use.PUBLISH),
        ({"engines": {"engine-0": EngineState.DOWN}}, Use.DOWN),
        ({"engines": {"engine-0": EngineState.SWITCHING}, "lent": True}, Use.SWITCH),
        ({"engines": {"engine-0": EngineState.LENT}, "lent": True, "training": True}, Use.TRAIN),
        ({"engines": {"engine-0": EngineState.LENT}, "lent": True}, Use.IDLE),
        ({"engines": {"engine-0": EngineState.DOWN}, "lent": True, "training": True}, Use.TRAIN),
    ],
)
def test_use_of_a_swing_engines_gpu(change: dict[str, object], use: Use) -> None:
    assert uses(replace(MOMENT, **change))["engine-0"] is use  # type: ignore[arg-type]


def test_a_dedicated_engine_is_not_the_trainers() -> None:
    training = replace(MOMENT, lent=True, training=True)
    assert uses(training)["engine-1"] is Use.GENERATE
    assert TRAINER not in uses(training)


def test_a_trainer_with_gpus_of_its_own_has_a_lane() -> None:
    alone = replace(MOMENT, swing=frozenset())
    assert uses(alone)[TRAINER] is Use.IDLE
    assert uses(replace(alone, training=True))[TRAINER] is Use.TRAIN


steps = st.lists(
    st.tuples(st.floats(0, 1e5), st.lists(st.sampled_from(list(Use)), min_size=3, max_size=3), st.booleans())
)


@given(st.floats(0, 1e9), steps)
def test_every_lane_adds_up_to_the_whole_time(start: float, changes: list[tuple[float, list[Use], bool]]) -> None:
    lanes = ("a", "b", "c")
    time = GpuTime(start)
    time.set(dict.fromkeys(lanes, Use.IDLE), start)
    now, totals = start, dict.fromkeys(lanes, 0)

    def take() -> None:
        for spent in time.take(now):
            assert spent.spent_us > 0
            totals[spent.lane] += spent.spent_us

    for seconds, chosen, taken in changes:
        now += seconds
        time.set(dict(zip(lanes, chosen, strict=True)), now)
        if taken:
            take()
    take()
    assert set(totals.values()) == {round(now * 1e6) - round(start * 1e6)}


def test_a_use_begins_when_it_was_first_taken_up() -> None:
    time = GpuTime(0.0)
    for now, use in ((0.0, Use.IDLE), (5.0, Use.TRAIN), (8.0, Use.IDLE), (9.0, Use.TRAIN)):
        time.set({"a": use}, now)
    spent = {row.use: row for row in time.take(10.0)}
    assert (spent[Use.TRAIN].began_s, spent[Use.TRAIN].spent_us) == (5.0, 4_000_000)
    assert (spent[Use.IDLE].began_s, spent[Use.IDLE].spent_us) == (0.0, 6_000_000)
