"""How losses of tokens become one: the sum of loss x share over a denominator that counts the whole update.

Shares need only the token's own episode, so a rank computes them for its micro-batch; the denominator is the same
number on every rank. So the split over ranks and micro-batches changes nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.trainer.config import Aggregation
from agentrl.trainer.corrections.ratios import Episodes


def token_shares(keep_N: Tensor, episodes: Episodes, kind: Aggregation, dtype: torch.dtype) -> Tensor:
    """[N]: 0 for rejected tokens; 1, or one over its episode's kept tokens for sequence_mean."""
    shares_N = keep_N.to(dtype)
    if kind is Aggregation.sequence_mean:
        return shares_N / episodes.spread(episodes.sums(shares_N).clamp(min=1))
    return shares_N


def denominator(keep_N: Tensor, episodes: Episodes, kind: Aggregation, tokens_per_episode: int | None) -> int:
    """Of the update whose tokens these are. 0: everything is rejected.

    token_mean: kept tokens. sequence_mean: episodes with a kept token. constant: that times `tokens_per_episode`.
    """
    if kind is Aggregation.token_mean:
        return int(keep_N.sum())
    num_episodes = int((episodes.sums(keep_N.long()) > 0).sum())
    if kind is Aggregation.constant:
        assert tokens_per_episode is not None, "the lint asks for aggregation_tokens"
        return num_episodes * tokens_per_episode
    return num_episodes
