"""Rewards of a group become advantages. Pure functions over numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from agentrl.trainer.config import Advantage

_STD_FLOOR = 1e-6


def group_advantages(rewards: Sequence[float], groups: Sequence[str], kind: Advantage) -> npt.NDArray[np.float32]:
    """Advantage of each episode against the others of its group.

    `mean`: A = r - mean(group) (Dr. GRPO, arXiv 2503.20783). `std`: A = (r - mean) / (std + 1e-6) with the population
    std (GRPO, arXiv 2402.03300). Members of a group need not be adjacent. A group of equal rewards, or of one member,
    gives exact zeros. Shape: [num_episodes].
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
        advantages[members] = centred
    return advantages.astype(np.float32)
