"""What is maximised for each token: functions of log r = log pi - log anchor and of the advantage A.

The anchor is q (decoupled, r = U) or mu (r = E). Each function returns the objective of each token, whose gradient
flows through log pi only, and whether a bound took or limited that token's gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.trainer.config import AlgorithmConfig, Surrogate
from agentrl.trainer.corrections.ratios import Episodes, bounded_ratio


@dataclass(frozen=True)
class Objective:
    """One surrogate's answer."""

    value_N: Tensor
    """To be maximised."""
    bounded_N: Tensor
    """bool: the bound is active at this token."""


def ppo(
    log_ratio_N: Tensor, advantages_N: Tensor, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> Objective:
    """min(r A, clip(r, 1 - low, 1 + high) A), low 0.2 (PPO, arXiv 1707.06347), high 0.28 (clip-higher, 2503.14476).

    With `dual_clip` c = 3, tokens of negative A count at least c A (dual-clip PPO, arXiv 1912.09729): r has no bound
    above there otherwise.
    """
    ratio_N = bounded_ratio(log_ratio_N)
    clipped_N = ratio_N.clamp(1 - clip_low, 1 + clip_high)
    value_N = torch.minimum(ratio_N * advantages_N, clipped_N * advantages_N)
    bounded_N = ((advantages_N > 0) & (ratio_N > 1 + clip_high)) | ((advantages_N < 0) & (ratio_N < 1 - clip_low))
    if dual_clip is not None:
        value_N = torch.where(advantages_N < 0, torch.maximum(value_N, dual_clip * advantages_N), value_N)
        bounded_N = bounded_N | ((advantages_N < 0) & (ratio_N > dual_clip))
    return Objective(value_N, bounded_N)


def gspo(
    log_ratio_N: Tensor,
    advantages_N: Tensor,
    keep_N: Tensor,
    episodes: Episodes,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> Objective:
    """PPO with s = exp(mean over the episode's kept tokens of log r) at each token; low 3e-4, high 4e-4.

    Group sequence policy optimization (arXiv 2507.18071). The mean makes s far closer to 1 than a token's ratio.
    """
    log_s_N = episodes.spread(episodes.means(log_ratio_N, keep_N))
    return ppo(log_s_N, advantages_N, clip_low, clip_high, dual_clip)


def cispo(log_ratio_N: Tensor, current_N: Tensor, advantages_N: Tensor, clip_low: float, clip_high: float) -> Objective:
    """sg(clip(r, 1 - low, 1 + high)) A log pi: the weight is clipped, the gradient is not (arXiv 2506.13585).

    The paper uses r = E, no lower clip (low 1) and a high clip that is tuned.
    """
    ratio_N = bounded_ratio(log_ratio_N.detach())
    clipped_N = ratio_N.clamp(1 - clip_low, 1 + clip_high)
    return Objective(clipped_N * advantages_N * current_N, clipped_N != ratio_N)


def dppo_tv(current_N: Tensor, anchor_N: Tensor, advantages_N: Tensor, bound: float, penalty: float) -> Objective:
    """r A - penalty log^2 r, without the first term where pi - anchor exceeds `bound` in A's direction.

    Bound 0.2 and penalty 1e-3, r = E. Divergence PPO with the binary total variation (arXiv 2602.04879); the penalty
    is prime-rl's.
    """
    log_ratio_N = current_N - anchor_N
    moved_N = (torch.exp(current_N) - torch.exp(anchor_N)).detach()
    bounded_N = torch.where(advantages_N > 0, moved_N > bound, moved_N < -bound)
    free_N = bounded_ratio(torch.where(bounded_N, 0.0, log_ratio_N)) * advantages_N
    value_N = torch.where(bounded_N, 0.0, free_N) - penalty * log_ratio_N.square()
    return Objective(value_N, bounded_N)


def objective(
    *,
    current_N: Tensor,
    anchor_N: Tensor,
    advantages_N: Tensor,
    keep_N: Tensor,
    episodes: Episodes,
    algorithm: AlgorithmConfig,
) -> Objective:
    """The configured surrogate."""
    low, high = algorithm.clip_low, algorithm.clip_high
    if algorithm.surrogate is Surrogate.dppo_tv:
        return dppo_tv(current_N, anchor_N, advantages_N, algorithm.tv_bound, algorithm.tv_penalty)
    log_ratio_N = current_N - anchor_N
    if algorithm.surrogate is Surrogate.cispo:
        return cispo(log_ratio_N, current_N, advantages_N, low, high)
    if algorithm.surrogate is Surrogate.gspo:
        return gspo(
            log_ratio_N, advantages_N, keep_N, episodes, clip_low=low, clip_high=high, dual_clip=algorithm.dual_clip
        )
    return ppo(log_ratio_N, advantages_N, low, high, algorithm.dual_clip)
