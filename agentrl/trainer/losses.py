"""The policy loss, as small functions over tensors of one log-prob per sampled token (axis N).

mu: behaviour policy (the engine, any version). q: proximal policy (the trainer's weights at the start of the step).
pi: current policy (the trainer's weights now). Every function works elementwise; the caller sums and divides.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class LossCoefficients:
    """See AlgorithmConfig, whose names these are."""

    clip_low: float
    clip_high: float
    importance_cap: float
    kl_coef: float


@dataclass(frozen=True, kw_only=True)
class LossInputs:
    """What the loss of each token needs beside its current log-prob. All float32[N], all without gradient."""

    proximal_N: Tensor
    behaviour_N: Tensor
    advantages_N: Tensor
    reference_N: Tensor | None = None
    """Log-probs of the frozen start model; None without a KL penalty."""


def importance_weight(proximal_N: Tensor, behaviour_N: Tensor, cap: float) -> Tensor:
    """min(q / mu, cap): token-level truncated importance sampling (arXiv 2505.24298 for q/mu; cap as in IMPALA)."""
    return torch.exp(proximal_N - behaviour_N).clamp(max=cap)


def clipped_surrogate(ratio_N: Tensor, advantages_N: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """min(r A, clip(r, 1 - low, 1 + high) A), r = pi / q: PPO (arXiv 1707.06347), clip-higher (arXiv 2503.14476)."""
    clipped_N = ratio_N.clamp(1 - clip_low, 1 + clip_high)
    return torch.minimum(ratio_N * advantages_N, clipped_N * advantages_N)


def is_clipped(ratio_N: Tensor, advantages_N: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """bool[N]: tokens whose gradient the clip has taken."""
    return ((advantages_N > 0) & (ratio_N > 1 + clip_high)) | ((advantages_N < 0) & (ratio_N < 1 - clip_low))


def k3(reference_N: Tensor, current_N: Tensor) -> Tensor:
    """rho - 1 - log rho with rho = reference / pi: a non-negative, unbiased estimate of KL(pi || reference).

    Schulman, "Approximating KL divergence" (2020); as a penalty in GRPO (arXiv 2402.03300).
    """
    log_rho_N = reference_N - current_N
    return torch.expm1(log_rho_N) - log_rho_N


def token_losses(current_N: Tensor, inputs: LossInputs, coefficients: LossCoefficients) -> Tensor:
    """-sg(min(q/mu, cap)) min(r A, clip(r) A) + kl_coef k3: decoupled PPO (AReaL, arXiv 2505.24298), per token.

    The gradient flows through `current_N` only.
    """
    ratio_N = torch.exp(current_N - inputs.proximal_N)
    surrogate_N = clipped_surrogate(ratio_N, inputs.advantages_N, coefficients.clip_low, coefficients.clip_high)
    weight_N = importance_weight(inputs.proximal_N, inputs.behaviour_N, coefficients.importance_cap)
    losses_N = -weight_N * surrogate_N
    if inputs.reference_N is not None:
        losses_N = losses_N + coefficients.kl_coef * k3(inputs.reference_N, current_N)
    return losses_N
