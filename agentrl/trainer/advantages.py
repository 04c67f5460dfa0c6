"""Rewards of a group become advantages. Pure functions over numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from agentrl.trainer.config import Advantage, AlgorithmConfig

_STD_FLOOR = 1e-6


def group_advantages(rewards: Sequence[float], groups: Sequence[str], kind: Advantage) -> npt.NDArray[np.float32]:
    """Advantage of each episode against the others of its group.

    `mean`: A = r - mean(group) (Dr. GRPO, arXiv 2503.20783). `std`: A = (r - mean) / (std + 1e-6) with the population
    std (GRPO, arXiv 2402.03300). `leave_one_out`: A = r - mean(the others) = (r - mean) G / (G - 1), G members (RLOO,
    arXiv 2402.14740). `batch`: A = (r - mean) / (s + 1e-6), s the population std of r - mean over the whole batch
    (REINFORCE++-baseline, arXiv 2501.03262).

    Members of a group need not be adjacent. A group of equal rewards, or of one member, gives exact zeros. Shape:
    [num_episodes].
    """
    values = np.asarray(rewards, dtype=np.float64)
    names = np.asarray(groups, dtype=object)
    advantages = np.zeros_like(values)
    for name in dict.fromkeys(groups):
        members = names == name
        group = values[members]
        if np.all(group == group[0]):
            continue  # a mean that is off by one rounding must not become a gradient, least of all over a tiny std
        centred = group - group.mean()
        if kind is Advantage.std:
            centred /= group.std() + _STD_FLOOR
        if kind is Advantage.leave_one_out:
            centred *= group.size / (group.size - 1)
        advantages[members] = centred
    if kind is Advantage.batch:
        advantages /= advantages.std() + _STD_FLOOR
    return advantages.astype(np.float32)


def shaped_rewards(
    rewards: Sequence[float], lengths: Sequence[int], algorithm: AlgorithmConfig
) -> npt.NDArray[np.float64]:
    """Rewards less the soft over-length punishment (DAPO, arXiv 2503.14476, eq. 13); `lengths` in tokens.

    0 up to `overlength_from_tokens`, then in a line to the whole penalty at `overlength_full_tokens` and beyond. So an
    episode that ran long stays in the batch, and one that nearly did is warned. Shape: [num_episodes].
    """
    values = np.asarray(rewards, dtype=np.float64)
    first, full = algorithm.overlength_from_tokens, algorithm.overlength_full_tokens
    if first is None or full is None:
        return values
    excess = (np.asarray(lengths, dtype=np.float64) - first) / (full - first)
    shaped: npt.NDArray[np.float64] = values - algorithm.overlength_penalty * np.clip(excess, 0.0, 1.0)
    return shaped
