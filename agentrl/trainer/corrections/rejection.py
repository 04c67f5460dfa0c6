"""Which tokens and episodes are left out, by their ratio B = q / mu. Rejected tokens leave the denominator, too.

Everything compares logarithms, so nothing overflows. A NaN is never rejected: it must stop the step.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from agentrl.trainer.config import AlgorithmConfig
from agentrl.trainer.corrections.ratios import Episodes


def within(log_values: Tensor, low: float | None, high: float | None) -> Tensor:
    """bool: not outside [low, high], bounds included; None is no bound."""
    keep = torch.ones_like(log_values, dtype=torch.bool)
    if low is not None:
        keep &= ~(log_values < math.log(low))
    if high is not None:
        keep &= ~(log_values > math.log(high))
    return keep


def token_band(log_B: Tensor, low: float | None, high: float | None) -> Tensor:
    """bool[N]: tokens with B in [low, high].

    Masked importance sampling: [1/2, 2]. IcePop (arXiv 2510.18855): [0.5, 5].
    """
    return within(log_B, low, high)


def sequence_band(log_B: Tensor, episodes: Episodes, low: float | None, high: float | None) -> Tensor:
    """bool[N]: tokens of episodes whose product of B lies in [low, high]: the band of IcePop or masked importance
    sampling on sequences, high 2 to 10. A product grows with length: long episodes are rejected more easily."""
    return episodes.spread(within(episodes.sums(log_B), low, high))


def geometric_band(log_B: Tensor, episodes: Episodes, low: float | None, high: float | None) -> Tensor:
    """bool[N]: tokens of episodes whose (product of B)^(1/T) lies in [low, high], whatever their length T: geometric
    rejection, [0.99, 1.01] for what numerics do at equal weights. Lag wants a wider band."""
    means_S = episodes.means(log_B, torch.ones_like(log_B, dtype=torch.bool))
    return episodes.spread(within(means_S, low, high))


def veto(log_B: Tensor, episodes: Episodes, ratio: float) -> Tensor:
    """bool[N]: tokens of episodes without any B under `ratio`, 1e-4: one token that proximal would never have sampled
    shows that what follows it is not the policy's."""
    catastrophic_N = log_B < math.log(ratio)
    return ~episodes.spread(episodes.sums(catastrophic_N.to(log_B.dtype)) > 0)


def keep_mask(log_B: Tensor, episodes: Episodes, algorithm: AlgorithmConfig) -> Tensor:
    """bool[N]: tokens that no configured rule rejects."""
    keep_N = token_band(log_B, algorithm.token_ratio_min, algorithm.token_ratio_max)
    keep_N &= sequence_band(log_B, episodes, algorithm.sequence_ratio_min, algorithm.sequence_ratio_max)
    keep_N &= geometric_band(log_B, episodes, algorithm.geometric_ratio_min, algorithm.geometric_ratio_max)
    if algorithm.veto_ratio is not None:
        keep_N &= veto(log_B, episodes, algorithm.veto_ratio)
    return keep_N
