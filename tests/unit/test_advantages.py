"""Advantages: centred within the group, nothing else by default."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.trainer.advantages import group_advantages, shaped_rewards
from agentrl.trainer.config import Advantage, AlgorithmConfig

members = st.lists(st.tuples(st.sampled_from("abc"), st.floats(-2, 2, width=16)), min_size=1, max_size=24)


@given(members, st.sampled_from(Advantage))
def test_equal_a_slow_reference(members: list[tuple[str, float]], kind: Advantage) -> None:
    groups, rewards = [g for g, _ in members], [r for _, r in members]
    expected = []
    for place, (group, reward) in enumerate(members):
        peers = [r for g, r in members if g == group]
        others = [r for i, (g, r) in enumerate(members) if g == group and i != place]
        centred = reward - statistics.fmean(peers)
        if kind is Advantage.leave_one_out:
            centred = reward - statistics.fmean(others) if others else 0.0
        expected.append(centred / (statistics.pstdev(peers) + 1e-6) if kind is Advantage.std else centred)
    if kind is Advantage.batch:
        spread = statistics.pstdev(expected) + 1e-6
        expected = [centred / spread for centred in expected]
    assert group_advantages(rewards, groups, kind).tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)


@given(st.floats(-2, 2), st.integers(1, 9), st.sampled_from(Advantage))
def test_equal_rewards_give_exact_zeros(reward: float, size: int, kind: Advantage) -> None:
    assert not group_advantages([reward] * size, ["g"] * size, kind).any()


def test_mean_does_not_divide_by_the_deviation() -> None:
    advantages = group_advantages([1, 0, 0, 0], ["g"] * 4, Advantage.mean)
    np.testing.assert_allclose(advantages, [0.75, -0.25, -0.25, -0.25])


def test_over_length_is_taken_from_the_reward_in_a_line() -> None:
    config = AlgorithmConfig(overlength_from_tokens=100, overlength_full_tokens=200, overlength_penalty=0.5)
    shaped = shaped_rewards([1, 1, 0, 1], [100, 150, 200, 900], config)
    assert shaped.tolist() == [1, 0.75, -0.5, 0.5]
    assert shaped_rewards([1.0], [900], AlgorithmConfig()).tolist() == [1]


def test_std_divides_by_the_population_deviation() -> None:
    np.testing.assert_allclose(group_advantages([1, 0], ["g", "g"], Advantage.std), [1, -1], rtol=1e-5)
