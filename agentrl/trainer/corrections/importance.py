"""Weights that make up for behaviour being another policy than proximal. Without gradient; log_B = log q - log mu."""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.trainer.config import Importance
from agentrl.trainer.corrections.ratios import Episodes, bounded_ratio


def token_weight(log_B: Tensor, cap: float) -> Tensor:
    """min(B, C) of each token, C = 2: token-level truncated importance sampling (IMPALA, arXiv 1802.01561).

    With the PPO surrogate anchored at proximal this is decoupled PPO (AReaL, arXiv 2505.24298).
    """
    return bounded_ratio(log_B).clamp(max=cap)


def sequence_weight(log_B: Tensor, episodes: Episodes, cap: float) -> Tensor:
    """min(product of B over the episode, C) at each of its tokens, C = 2 to 10: sequence-level truncation."""
    return episodes.spread(bounded_ratio(episodes.sums(log_B)).clamp(max=cap))


def importance_weight(kind: Importance, log_B: Tensor, episodes: Episodes, cap: float) -> Tensor:
    """[N]: the weight of the configured kind."""
    if kind is Importance.token:
        return token_weight(log_B, cap)
    if kind is Importance.sequence:
        return sequence_weight(log_B, episodes, cap)
    return torch.ones_like(log_B)
