"""The loss functions against slow references in float64, and the properties that their names promise."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from agentrl.trainer.losses import (
    LossCoefficients,
    LossInputs,
    clipped_surrogate,
    importance_weight,
    is_clipped,
    k3,
    token_losses,
)

COEFFICIENTS = LossCoefficients(clip_low=0.2, clip_high=0.28, importance_cap=2.0, kl_coef=0.1)
logprob = st.floats(-12, 0, width=32)
token = st.tuples(logprob, logprob, logprob, logprob, st.floats(-3, 3, width=32))


def _reference(current: float, proximal: float, behaviour: float, reference: float, advantage: float) -> float:
    ratio = math.exp(current - proximal)
    clipped = min(max(ratio, 1 - 0.2), 1 + 0.28)
    weight = min(math.exp(proximal - behaviour), 2.0)
    log_rho = reference - current
    kl = math.exp(log_rho) - 1 - log_rho
    return -weight * min(ratio * advantage, clipped * advantage) + 0.1 * kl


def _tensor(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@given(st.lists(token, min_size=1, max_size=20))
def test_token_losses_equal_the_formula(tokens: list[tuple[float, ...]]) -> None:
    current_N, proximal_N, behaviour_N, reference_N, advantages_N = map(_tensor, map(list, zip(*tokens, strict=True)))
    inputs = LossInputs(
        proximal_N=proximal_N, behaviour_N=behaviour_N, advantages_N=advantages_N, reference_N=reference_N
    )
    losses_N = token_losses(current_N, inputs, COEFFICIENTS)
    assert losses_N.tolist() == pytest.approx([_reference(*values) for values in tokens], rel=1e-9, abs=1e-9)


@given(token)
def test_gradient_flows_through_the_current_logprob_only_and_stops_at_the_clip(values: tuple[float, ...]) -> None:
    current, proximal, behaviour, _, advantage = values
    current_N = _tensor([current]).requires_grad_()
    inputs = LossInputs(
        proximal_N=_tensor([proximal]), behaviour_N=_tensor([behaviour]), advantages_N=_tensor([advantage])
    )
    token_losses(current_N, inputs, COEFFICIENTS).sum().backward()
    ratio = math.exp(current - proximal)
    weight = min(math.exp(proximal - behaviour), 2.0)
    clipped = (advantage > 0 and ratio > 1.28) or (advantage < 0 and ratio < 0.8)
    expected = 0.0 if clipped else -weight * ratio * advantage
    assert current_N.grad is not None
    assert current_N.grad.item() == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert is_clipped(torch.exp(current_N - inputs.proximal_N), inputs.advantages_N, 0.2, 0.28).item() is clipped


def test_on_policy_the_gradient_is_the_policy_gradient() -> None:
    current_N = _tensor([-1.0, -2.0]).requires_grad_()
    inputs = LossInputs(
        proximal_N=current_N.detach(), behaviour_N=current_N.detach(), advantages_N=_tensor([0.5, -0.5])
    )
    token_losses(current_N, inputs, COEFFICIENTS).sum().backward()
    assert current_N.grad is not None
    assert current_N.grad.tolist() == [-0.5, 0.5]


def test_importance_weight_is_capped_above_and_free_below() -> None:
    weights_N = importance_weight(_tensor([-1.0, -1.0, -5.0]), _tensor([-1.0, -9.0, -1.0]), cap=2.0)
    assert weights_N.tolist() == pytest.approx([1.0, 2.0, math.exp(-4)])


def test_clip_is_wider_above_than_below() -> None:
    ratio_N = _tensor([1.25, 1.5, 0.75, 0.5])
    assert clipped_surrogate(ratio_N, _tensor([1.0, 1.0, -1.0, -1.0]), 0.2, 0.28).tolist() == pytest.approx(
        [1.25, 1.28, -0.8, -0.8]
    )


@given(logprob, logprob)
def test_k3_is_never_negative_and_zero_only_at_equality(reference: float, current: float) -> None:
    value = k3(_tensor([reference]), _tensor([current])).item()
    assert value > 0 if abs(reference - current) > 1e-6 else value == pytest.approx(0, abs=1e-12)


def test_k3_is_an_unbiased_estimate_of_the_divergence_from_the_reference() -> None:
    policy, reference = torch.log_softmax(_tensor([0.1, 1.0, -0.5]), 0), torch.log_softmax(_tensor([0.3, 0.2, 0.0]), 0)
    exact = (policy.exp() * (policy - reference)).sum()
    assert (policy.exp() * k3(reference, policy)).sum().item() == pytest.approx(exact.item())


def test_no_token_gives_no_loss() -> None:
    empty = torch.zeros(0)
    inputs = LossInputs(proximal_N=empty, behaviour_N=empty, advantages_N=empty)
    assert token_losses(empty, inputs, COEFFICIENTS).shape == (0,)
