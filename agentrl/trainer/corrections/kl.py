"""Penalties on the distance to the frozen start model. rho = ref / pi; the names are Schulman's (2020)."""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.trainer.config import KlEstimator
from agentrl.trainer.corrections.limits import LOG_RATIO_BOUND
from agentrl.trainer.corrections.ratios import bounded_ratio


def k1(reference_N: Tensor, current_N: Tensor) -> Tensor:
    """log(pi / ref), with gradient k1 grad log pi: the penalty taken from the reward.

    Differentiated directly it would vanish in expectation, since E[grad log pi] = 0.
    """
    value_N = (current_N - reference_N).detach()
    return value_N * torch.exp(current_N - current_N.detach())


def k3(reference_N: Tensor, current_N: Tensor) -> Tensor:
    """rho - 1 - log rho: a non-negative, unbiased estimate of KL(pi || ref); as a penalty in GRPO (arXiv 2402.03300).

    Its gradient is that of KL(ref || pi) near rho = 1, biased elsewhere.
    """
    log_rho_N = (reference_N - current_N).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return torch.expm1(log_rho_N) - log_rho_N


def k3_corrected(reference_N: Tensor, current_N: Tensor, behaviour_N: Tensor) -> Tensor:
    """pi / mu k3, the gradient flowing through both: unbiased, in value and gradient, for tokens sampled from mu.

    DeepSeek-V3.2 (arXiv 2512.02556, section 3.1).
    """
    return bounded_ratio(current_N - behaviour_N) * k3(reference_N, current_N)


def kl_penalty(kind: KlEstimator, reference_N: Tensor, current_N: Tensor, behaviour_N: Tensor) -> Tensor:
    """[N]: the configured estimate."""
    if kind is KlEstimator.k1:
        return k1(reference_N, current_N)
    if kind is KlEstimator.k3_corrected:
        return k3_corrected(reference_N, current_N, behaviour_N)
    return k3(reference_N, current_N)
