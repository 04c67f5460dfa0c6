"""Ratios of probabilities that cannot overflow, and sums over episodes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.trainer.corrections.limits import LOG_RATIO_BOUND


def bounded_ratio(log_ratio_N: Tensor) -> Tensor:
    """exp(log ratio) within the bound, where its gradient ends. NaN stays NaN: it must stop the step."""
    return torch.exp(log_ratio_N.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND))


def kept(values_N: Tensor, keep_N: Tensor) -> Tensor:
    """Values with 0 where a token is rejected. Taken before anything is computed: a rejected token's infinity would
    come back as NaN from the backward pass, which multiplies it by 0."""
    return torch.where(keep_N, values_N, 0.0)


@dataclass(frozen=True)
class Episodes:
    """Which episode each token belongs to."""

    index_N: Tensor
    """int64, from 0 to num - 1."""
    num: int

    @staticmethod
    def of(names_N: Tensor) -> Episodes:
        """From any integers that are equal within an episode."""
        names_S, index_N = torch.unique(names_N, return_inverse=True)
        return Episodes(index_N, len(names_S))

    def sums(self, values_N: Tensor) -> Tensor:
        """[S]: sum of each episode's tokens."""
        return values_N.new_zeros(self.num).index_add(0, self.index_N, values_N)

    def means(self, values_N: Tensor, keep_N: Tensor) -> Tensor:
        """[S]: mean over each episode's kept tokens, 0 where none is kept."""
        counts_S = self.sums(keep_N.to(values_N.dtype)).clamp(min=1)
        return self.sums(kept(values_N, keep_N)) / counts_S

    def spread(self, values_S: Tensor) -> Tensor:
        """[N]: its episode's value at each token."""
        return values_S[self.index_N]
