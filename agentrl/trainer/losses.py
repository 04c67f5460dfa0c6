"""The loss of each sampled token: the parts of `corrections` put together by AlgorithmConfig.

    weight x (- surrogate) + kl_coef x KL      weight = importance x band of the group; 0 where rejected

Axis N: sampled tokens of whole episodes. The gradient flows through the current log-probs only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.trainer.config import AlgorithmConfig, Anchor
from agentrl.trainer.corrections import aggregation
from agentrl.trainer.corrections.importance import importance_weight
from agentrl.trainer.corrections.kl import kl_penalty
from agentrl.trainer.corrections.ratios import Episodes, kept
from agentrl.trainer.corrections.rejection import keep_mask
from agentrl.trainer.corrections.surrogates import objective


@dataclass(frozen=True, kw_only=True)
class LossInputs:
    """What the loss of each token needs beside its current log-prob. Floats are float32[N], without gradient."""

    proximal_N: Tensor
    behaviour_N: Tensor
    advantages_N: Tensor
    episodes_N: Tensor
    """int64: equal within an episode."""
    reference_N: Tensor | None = None
    """Log-probs of the frozen start model; None without a KL penalty."""
    group_weights_N: Tensor | None = None
    """Factor of the token's group; None: 1 everywhere."""
    truncated_N: Tensor | None = None
    """bool: the token's group has its importance weights capped at 1; None: no group has."""

    def select(self, tokens_N: Tensor) -> LossInputs:
        """Of these tokens only, which are those of whole episodes."""

        def part(values_N: Tensor | None) -> Tensor | None:
            return None if values_N is None else values_N[tokens_N]

        return LossInputs(
            proximal_N=self.proximal_N[tokens_N],
            behaviour_N=self.behaviour_N[tokens_N],
            advantages_N=self.advantages_N[tokens_N],
            episodes_N=self.episodes_N[tokens_N],
            reference_N=part(self.reference_N),
            group_weights_N=part(self.group_weights_N),
            truncated_N=part(self.truncated_N),
        )


@dataclass(frozen=True, kw_only=True)
class LossTerms:
    """The losses of a part of a batch. The update's loss is the sum of losses x shares over its denominator."""

    losses_N: Tensor
    """0 where rejected."""
    shares_N: Tensor
    keep_N: Tensor
    """bool: not rejected."""
    bounded_N: Tensor
    """bool: the surrogate's bound is active."""
    weights_N: Tensor
    """Importance weights."""
    denominator: int
    """That of these tokens, if they are the whole update."""


def loss_terms(current_N: Tensor, inputs: LossInputs, algorithm: AlgorithmConfig) -> LossTerms:
    """Loss of each token. A rejected token's log-probs, finite or not, touch neither loss nor gradient."""
    episodes = Episodes.of(inputs.episodes_N)
    log_B = inputs.proximal_N - inputs.behaviour_N
    keep_N = keep_mask(log_B, episodes, algorithm)
    weights_N = _weights(log_B, episodes, inputs, algorithm)
    pi_N, mu_N = kept(current_N, keep_N), kept(inputs.behaviour_N, keep_N)
    anchor_N = mu_N if algorithm.anchor is Anchor.behaviour else kept(inputs.proximal_N, keep_N)
    gained = objective(
        current_N=pi_N,
        anchor_N=anchor_N,
        advantages_N=inputs.advantages_N,
        keep_N=keep_N,
        episodes=episodes,
        algorithm=algorithm,
    )
    losses_N = -kept(weights_N, keep_N) * gained.value_N
    if inputs.reference_N is not None:
        reference_N = kept(inputs.reference_N, keep_N)
        losses_N = losses_N + algorithm.kl_coef * kl_penalty(algorithm.kl_estimator, reference_N, pi_N, mu_N)
    return LossTerms(
        losses_N=kept(losses_N, keep_N),
        shares_N=aggregation.token_shares(keep_N, episodes, algorithm.aggregation, losses_N.dtype),
        keep_N=keep_N,
        bounded_N=gained.bounded_N & keep_N,
        weights_N=weights_N,
        denominator=aggregation.denominator(keep_N, episodes, algorithm.aggregation, algorithm.aggregation_tokens),
    )


def largest_denominator(inputs: LossInputs, algorithm: AlgorithmConfig) -> int:
    """The denominator that an update of these tokens has if nothing is rejected."""
    keep_N = torch.ones_like(inputs.episodes_N, dtype=torch.bool)
    episodes = Episodes.of(inputs.episodes_N)
    return aggregation.denominator(keep_N, episodes, algorithm.aggregation, algorithm.aggregation_tokens)


def _weights(log_B: Tensor, episodes: Episodes, inputs: LossInputs, algorithm: AlgorithmConfig) -> Tensor:
    weights_N = importance_weight(algorithm.importance, log_B, episodes, algorithm.importance_cap)
    if inputs.truncated_N is not None:
        weights_N = torch.where(inputs.truncated_N, weights_N.clamp(max=1.0), weights_N)
    return weights_N if inputs.group_weights_N is None else weights_N * inputs.group_weights_N
