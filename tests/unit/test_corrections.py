"""What each correction promises, on cases that can be worked out by hand. test_losses.py holds them to the formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from agentrl.trainer.config import AlgorithmConfig
from agentrl.trainer.corrections.group_bands import (
    Band,
    band_counts,
    decide,
    group_divergences,
    left_out_by_family,
    task_family,
)
from agentrl.trainer.corrections.importance import sequence_weight, token_weight
from agentrl.trainer.corrections.kl import k1, k3, k3_corrected
from agentrl.trainer.corrections.ratios import Episodes
from agentrl.trainer.corrections.rejection import geometric_band, sequence_band, token_band, veto
from agentrl.trainer.corrections.surrogates import cispo, dppo_tv, gspo, ppo

ONE = Episodes(torch.tensor([0, 0]), 1)
KEEP = torch.tensor([True, True])


def _tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _logs(*values: float) -> Tensor:
    return _tensor(*values).log()


def test_token_weights_are_capped_above_and_free_below() -> None:
    assert token_weight(_logs(1, 9, 0.01), 2.0).tolist() == pytest.approx([1, 2, 0.01])


def test_a_sequence_weight_is_the_capped_product_at_every_token() -> None:
    assert sequence_weight(_logs(2, 0.25), ONE, 2.0).tolist() == pytest.approx([0.5, 0.5])
    assert sequence_weight(_logs(2, 3), ONE, 5.0).tolist() == pytest.approx([5, 5])


def test_bands_include_their_edges() -> None:
    assert token_band(_logs(0.49, 0.5, 5, 5.1), 0.5, 5.0).tolist() == [False, True, True, False]
    assert token_band(_logs(0.01, 100), None, None).tolist() == [True, True]


def test_a_product_rejects_what_a_geometric_mean_keeps() -> None:
    log_B = _logs(1.5, 1.5)
    assert sequence_band(log_B, ONE, 0.5, 2.0).tolist() == [False, False]
    assert geometric_band(log_B, ONE, 0.5, 2.0).tolist() == [True, True]


def test_a_veto_takes_the_episode_of_one_impossible_token_and_no_other() -> None:
    episodes = Episodes(torch.tensor([0, 0, 1]), 2)
    assert veto(_logs(1, 1e-5, 1e-3), episodes, 1e-4).tolist() == [False, False, True]


def test_the_clip_is_wider_above_than_below() -> None:
    gained = ppo(_logs(1.25, 1.5, 0.75, 0.5), _tensor(1, 1, -1, -1), 0.2, 0.28)
    assert gained.value_N.tolist() == pytest.approx([1.25, 1.28, -0.8, -0.8])
    assert gained.bounded_N.tolist() == [False, True, True, True]


def test_the_dual_clip_bounds_what_ppo_leaves_unbounded() -> None:
    ratio, advantage = _logs(50), _tensor(-1)
    assert ppo(ratio, advantage, 0.2, 0.28).value_N.item() == pytest.approx(-50)
    assert ppo(ratio, advantage, 0.2, 0.28, 3.0).value_N.item() == pytest.approx(-3)


def test_gspo_sees_the_mean_of_an_episode_and_only_of_its_kept_tokens() -> None:
    gained = gspo(_logs(4, 0.25), _tensor(1, 1), KEEP, ONE, clip_low=0.2, clip_high=0.28)
    assert gained.value_N.tolist() == pytest.approx([1, 1])
    kept = gspo(_logs(0.9, 0.25), _tensor(1, 1), torch.tensor([True, False]), ONE, clip_low=0.2, clip_high=0.28)
    assert kept.value_N[0].item() == pytest.approx(0.9)


def test_cispo_keeps_the_gradient_of_a_clipped_token() -> None:
    current_N = _logs(0.5).requires_grad_()
    gained = cispo(current_N.detach() - _logs(0.1), current_N, _tensor(1), 1.0, 0.28)
    gained.value_N.sum().backward()
    assert current_N.grad is not None
    assert (current_N.grad.item(), gained.bounded_N.item()) == (pytest.approx(1.28), True)


def test_dppo_masks_by_the_change_of_probability_and_not_by_the_ratio() -> None:
    current_N, anchor_N = _logs(0.001, 0.9, 0.1), _logs(0.0001, 0.6, 0.4)
    assert dppo_tv(current_N, anchor_N, _tensor(1, 1, 1), 0.2, 0.0).bounded_N.tolist() == [False, True, False]
    assert dppo_tv(current_N, anchor_N, _tensor(-1, -1, -1), 0.2, 0.0).bounded_N.tolist() == [False, False, True]


@given(st.floats(-12, 0), st.floats(-12, 0))
def test_k3_is_never_negative_and_zero_only_at_equality(reference: float, current: float) -> None:
    value = k3(_tensor(reference), _tensor(current)).item()
    assert value > 0 if abs(reference - current) > 1e-6 else value == pytest.approx(0, abs=1e-12)


def _expected(estimate: Tensor, sampled_from: Tensor) -> Tensor:
    return (sampled_from.detach().exp() * estimate).sum()


def test_k1_and_the_corrected_k3_have_the_gradient_of_the_divergence_and_plain_k3_has_not() -> None:
    logits = _tensor(0.1, 1.0, -0.5).requires_grad_()
    reference, behaviour = torch.log_softmax(_tensor(0.3, 0.2, 0.0), 0), torch.log_softmax(_tensor(1.0, 0.0, 0.3), 0)

    def gradient(loss: Tensor) -> list[float]:
        (found,) = torch.autograd.grad(loss, logits)
        return [float(value) for value in found]

    policy = torch.log_softmax(logits, 0)
    exact_value = (policy.exp() * (policy - reference)).sum()
    exact = gradient(exact_value)
    policy = torch.log_softmax(logits, 0)
    assert gradient(_expected(k1(reference, policy), policy)) == pytest.approx(exact)
    policy = torch.log_softmax(logits, 0)
    off_policy = _expected(k3_corrected(reference, policy, behaviour), behaviour)
    assert off_policy.item() == pytest.approx(exact_value.item())
    assert gradient(off_policy) == pytest.approx(exact)
    policy = torch.log_softmax(logits, 0)
    assert gradient(_expected(k3(reference, policy), policy)) != pytest.approx(exact, rel=0.02)


BANDS = AlgorithmConfig(down_weight_divergence=0.1, truncate_divergence=0.2, drop_divergence=0.4)


@pytest.mark.parametrize(
    ("divergence", "band", "weight"),
    [
        (0.1, Band.keep, 1.0),
        (0.125, Band.down_weight, 0.8),
        (0.25, Band.truncate, 0.4),
        (0.41, Band.drop, 0.0),
    ],
)
def test_a_group_falls_from_band_to_band_as_it_diverges(divergence: float, band: Band, weight: float) -> None:
    decided = decide(divergence, BANDS)
    assert (decided.band, decided.weight) == (band, pytest.approx(weight))


def test_bands_that_are_not_set_do_nothing() -> None:
    assert decide(19.0, AlgorithmConfig()).band is Band.keep
    assert decide(19.0, AlgorithmConfig(truncate_divergence=0.1)) == decide(
        19.0, AlgorithmConfig(truncate_divergence=1)
    )


def test_a_groups_divergence_is_the_mean_over_its_tokens() -> None:
    measured = group_divergences(np.log([1.0, 2.0, 0.5]), ["a", "b", "b"])
    assert measured["a"] == 0
    assert measured["b"] == pytest.approx(((2 - 1 - math.log(2)) + (0.5 - 1 - math.log(0.5))) / 2)
    counts = band_counts({group: decide(value, BANDS) for group, value in measured.items()})
    assert (counts["groups_keep"], counts["groups_truncate"], counts["groups_drop"]) == (1, 1, 0)
    assert counts["group_divergence_max"] == measured["b"]


def test_what_is_left_out_is_counted_by_task_family() -> None:
    assert [task_family(task) for task in ("boxes-0012", "mkdir_nested_3", "fix bug", "17")] == [
        "boxes",
        "mkdir_nested",
        "fix bug",
        "17",
    ]
    shares = left_out_by_family(["boxes-1", "boxes-2", "sort-1"], np.array([True, False, True]))
    assert shares == {"left_out_share/boxes": 0.5, "left_out_share/sort": 0.0}
