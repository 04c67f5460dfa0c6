"""The loss of an update against a slow reference in float64, its gradient, and what must not become NaN."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentrl.trainer.config import Aggregation, AlgorithmConfig, Anchor, Importance, KlEstimator, Surrogate
from agentrl.trainer.losses import LossInputs, LossTerms, largest_denominator, loss_terms
from tests.fixtures.slow_losses import SlowToken, reference_loss

CORRECTIONS = {
    "decoupled PPO": AlgorithmConfig(),
    "PPO": AlgorithmConfig(anchor=Anchor.behaviour, importance=Importance.none),
    "uncorrected": AlgorithmConfig(importance=Importance.none),
    "dual clip": AlgorithmConfig(dual_clip=3.0),
    "sequence weights": AlgorithmConfig(importance=Importance.sequence, importance_cap=5.0),
    "masked importance sampling": AlgorithmConfig(token_ratio_min=0.5, token_ratio_max=2.0),
    "IcePop": AlgorithmConfig(importance_cap=5.0, token_ratio_min=0.5, token_ratio_max=5.0),
    "IcePop on sequences": AlgorithmConfig(sequence_ratio_min=0.2, sequence_ratio_max=5.0),
    "geometric rejection": AlgorithmConfig(geometric_ratio_min=0.8, geometric_ratio_max=1.25),
    "veto": AlgorithmConfig(veto_ratio=0.1),
    "CISPO": AlgorithmConfig(
        surrogate=Surrogate.cispo, anchor=Anchor.behaviour, importance=Importance.none, clip_low=1.0
    ),
    "GSPO": AlgorithmConfig(surrogate=Surrogate.gspo, aggregation=Aggregation.sequence_mean, dual_clip=3.0),
    "DPPO-TV": AlgorithmConfig(surrogate=Surrogate.dppo_tv, anchor=Anchor.behaviour, importance=Importance.none),
    "sequence mean": AlgorithmConfig(aggregation=Aggregation.sequence_mean, token_ratio_max=2.0),
    "constant divisor": AlgorithmConfig(aggregation=Aggregation.constant, aggregation_tokens=7, veto_ratio=0.1),
    "k1": AlgorithmConfig(kl_coef=0.1, kl_estimator=KlEstimator.k1),
    "k3": AlgorithmConfig(kl_coef=0.1),
    "corrected k3": AlgorithmConfig(kl_coef=0.1, kl_estimator=KlEstimator.k3_corrected, token_ratio_max=2.0),
}
logprob = st.floats(-3, -0.01)
token = st.builds(
    SlowToken,
    current=logprob,
    proximal=logprob,
    behaviour=logprob,
    reference=logprob,
    advantage=st.floats(-2, 2),
    episode=st.integers(0, 3),
)
batches = st.lists(token, min_size=1, max_size=12)


def _tensor(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _inputs(tokens: list[SlowToken], config: AlgorithmConfig) -> LossInputs:
    return LossInputs(
        proximal_N=_tensor([t.proximal for t in tokens]),
        behaviour_N=_tensor([t.behaviour for t in tokens]),
        advantages_N=_tensor([t.advantage for t in tokens]),
        episodes_N=torch.tensor([t.episode for t in tokens]),
        reference_N=_tensor([t.reference for t in tokens]) if config.kl_coef else None,
    )


def _current(tokens: list[SlowToken]) -> Tensor:
    return _tensor([t.current for t in tokens]).requires_grad_()


def _loss(terms: LossTerms) -> Tensor:
    return (terms.losses_N * terms.shares_N).sum() / max(1, terms.denominator)


def _finite_difference(tokens: list[SlowToken], place: int, config: AlgorithmConfig, step: float = 1e-6) -> float:
    def loss(shift: float) -> float:
        moved = list(tokens)
        moved[place] = replace(tokens[place], current=tokens[place].current + shift)
        return reference_loss(moved, tokens, config)

    return (loss(step) - loss(-step)) / (2 * step)


@pytest.mark.parametrize("name", CORRECTIONS)
@settings(max_examples=40)
@given(tokens=batches)
def test_the_loss_equals_the_formula(name: str, tokens: list[SlowToken]) -> None:
    config = CORRECTIONS[name]
    loss = _loss(loss_terms(_current(tokens), _inputs(tokens, config), config))
    assert loss.item() == pytest.approx(reference_loss(tokens, tokens, config), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", CORRECTIONS)
def test_the_gradient_is_that_of_the_formula(name: str) -> None:
    config = CORRECTIONS[name]
    generator = torch.Generator().manual_seed(3)
    drawn = -3 * torch.rand(40, 4, generator=generator, dtype=torch.float64)  # no draw lies on an edge of a bound
    tokens = [
        SlowToken(*row, advantage=0.3 * (place % 7) - 1, episode=place % 4) for place, row in enumerate(drawn.tolist())
    ]
    current_N = _current(tokens)
    _loss(loss_terms(current_N, _inputs(tokens, config), config)).backward()
    assert current_N.grad is not None
    expected = [_finite_difference(tokens, place, config) for place in range(len(tokens))]
    assert current_N.grad.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-8)
    assert any(expected)


@pytest.mark.parametrize("name", CORRECTIONS)
def test_a_rejected_token_of_any_log_prob_is_as_if_it_were_not_there(name: str) -> None:
    band = {"token_ratio_min": 0.5, "token_ratio_max": 5.0}
    if CORRECTIONS[name].importance is Importance.sequence or "sequences" in name or "geometric" in name:
        band |= {"importance": Importance.token, "sequence_ratio_min": None, "sequence_ratio_max": None}
        band |= {"geometric_ratio_min": None, "geometric_ratio_max": None}
    config = replace(CORRECTIONS[name], **(band | {"veto_ratio": None}))
    sound = [SlowToken(-1.0, -1.1, -1.2, -1.0, 0.5, 0), SlowToken(-2.0, -1.9, -2.0, -2.0, -0.5, 1)]
    infinite = [
        SlowToken(-math.inf, -math.inf, -1.0, -1.0, 0.5, 0),
        SlowToken(0.0, 0.0, -1e30, -math.inf, -0.5, 1),
        SlowToken(-0.1, 0.0, -900.0, -1e30, 0.5, 0),
    ]
    current_N, alone_N = _current(sound + infinite), _current(sound)
    loss = _loss(loss_terms(current_N, _inputs(sound + infinite, config), config))
    alone = _loss(loss_terms(alone_N, _inputs(sound, config), config))
    loss.backward()
    alone.backward()
    assert current_N.grad is not None
    assert alone_N.grad is not None
    assert loss.item() == pytest.approx(alone.item())
    assert current_N.grad.tolist() == pytest.approx([*alone_N.grad.tolist(), 0, 0, 0])


@pytest.mark.parametrize("name", CORRECTIONS)
def test_a_ratio_that_would_overflow_keeps_loss_and_gradient_finite(name: str) -> None:
    config = CORRECTIONS[name]
    tokens = [SlowToken(-0.1, -800.0, -0.1, -0.1, sign, sign > 0) for sign in (1.0, -1.0)]
    tokens += [SlowToken(-800.0, -0.1, -800.0, -0.1, sign, sign > 0) for sign in (1.0, -1.0)]
    inputs = _inputs(tokens, config)
    current_N = torch.tensor([t.current for t in tokens], requires_grad=True)
    loss = _loss(loss_terms(current_N, inputs, config))
    loss.backward()
    assert current_N.grad is not None
    assert torch.isfinite(loss)
    assert torch.isfinite(current_N.grad).all()


@pytest.mark.parametrize("name", CORRECTIONS)
@pytest.mark.parametrize("which", ["current", "proximal"])
def test_a_log_prob_that_is_not_a_number_is_never_hidden_by_a_rejection(name: str, which: str) -> None:
    tokens = [SlowToken(-1.0, -1.0, -1.0, -1.0, 0.5, 0), SlowToken(-1.0, -1.0, -1.0, -1.0, -0.5, 1)]
    tokens[1] = replace(tokens[1], **{which: math.nan})
    losses_N = loss_terms(_current(tokens), _inputs(tokens, CORRECTIONS[name]), CORRECTIONS[name]).losses_N
    ignored = which == "proximal" and name in {"CISPO", "DPPO-TV", "PPO"}  # these never look at it
    assert torch.isfinite(losses_N).tolist() == [True, ignored]


def test_on_policy_the_gradient_is_the_policy_gradient() -> None:
    tokens = [SlowToken(-1.0, -1.0, -1.0, -1.0, 0.5, 0), SlowToken(-2.0, -2.0, -2.0, -2.0, -0.5, 1)]
    current_N = _current(tokens)
    loss_terms(current_N, _inputs(tokens, AlgorithmConfig()), AlgorithmConfig()).losses_N.sum().backward()
    assert current_N.grad is not None
    assert current_N.grad.tolist() == [-0.5, 0.5]


@pytest.mark.parametrize("kind", Aggregation)
def test_parts_of_whole_episodes_add_up_to_the_batch(kind: Aggregation) -> None:
    config = AlgorithmConfig(aggregation=kind, aggregation_tokens=5, token_ratio_max=1.2)
    tokens = [SlowToken(-1.0 - e, -1.0, -1.0 - 0.1 * t, -1.0, 0.5 - e, e) for e in range(4) for t in range(e + 2)]
    whole = loss_terms(_current(tokens), _inputs(tokens, config), config)
    halves = [[t for t in tokens if t.episode % 2 == part] for part in (0, 1)]
    parts = [loss_terms(_current(half), _inputs(half, config), config) for half in halves]
    sums = [float((part.losses_N * part.shares_N).sum().detach()) for part in parts]
    assert sum(sums) / whole.denominator == pytest.approx(_loss(whole).item())
    assert sum(part.denominator for part in parts) == whole.denominator


def test_everything_rejected_leaves_no_denominator_and_no_loss() -> None:
    config = AlgorithmConfig(token_ratio_max=0.5)
    tokens = [SlowToken(-1.0, -1.0, -1.0, -1.0, 0.5, 0)]
    inputs = _inputs(tokens, config)
    terms = loss_terms(_current(tokens), inputs, config)
    assert (terms.denominator, terms.losses_N.tolist(), terms.keep_N.tolist()) == (0, [0.0], [False])
    assert largest_denominator(inputs, config) == 1


def test_a_group_counts_by_its_weight_and_a_truncated_one_for_no_more_than_it_did() -> None:
    config = AlgorithmConfig()
    tokens = [SlowToken(-1.0, -1.0, -1.5, -1.0, 1.0, episode) for episode in range(3)]
    inputs = replace(
        _inputs(tokens, config),
        group_weights_N=_tensor([1.0, 0.5, 0.5]),
        truncated_N=torch.tensor([False, False, True]),
    )
    losses = loss_terms(_current(tokens), inputs, config).losses_N.tolist()
    assert losses == pytest.approx([-math.exp(0.5), -math.exp(0.5) / 2, -0.5])
