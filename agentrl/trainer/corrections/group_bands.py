"""What becomes of each group, by how far proximal has moved from the policy that sampled it. Pure, over numpy arrays.

A group's divergence is the mean over its tokens of k3 = B - 1 - log B with B = q / mu, which estimates
KL(behaviour || proximal) and is never negative. Whole groups, because an advantage compares members: what drops one
member shifts the baseline of the others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from agentrl.trainer.config import AlgorithmConfig
from agentrl.trainer.corrections.limits import LOG_RATIO_BOUND


class Band(Enum):
    """What is done with a group."""

    keep = "keep"
    """Trained on as it is."""
    down_weight = "down_weight"
    """Its losses count by down_weight_divergence / divergence: 1 at the edge of the band, falling beyond it."""
    truncate = "truncate"
    """So weighted, and no token counts for more than it did when it was sampled: importance weights are capped at 1."""
    drop = "drop"
    """Not trained on."""


@dataclass(frozen=True)
class GroupBand:
    """The decision on one group."""

    band: Band
    divergence: float
    """Nats."""
    weight: float
    """Factor of its losses; 0 if dropped."""


def group_divergences(log_B: npt.NDArray[np.float64], groups_N: Sequence[str]) -> dict[str, float]:
    """Mean k3 of each group's tokens, in nats. `groups_N` names each token's group."""
    clamped_N = np.clip(log_B, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    k3_N = np.expm1(clamped_N) - clamped_N
    names = np.asarray(groups_N, dtype=object)
    return {group: float(k3_N[names == group].mean()) for group in dict.fromkeys(groups_N)}


def decide(divergence: float, algorithm: AlgorithmConfig) -> GroupBand:
    """The band of one group. A threshold of None is never exceeded."""

    def exceeds(threshold: float | None) -> bool:
        return threshold is not None and divergence > threshold

    if exceeds(algorithm.drop_divergence):
        return GroupBand(Band.drop, divergence, 0.0)
    edge = algorithm.down_weight_divergence
    weight = edge / divergence if edge is not None and divergence > edge else 1.0
    if exceeds(algorithm.truncate_divergence):
        return GroupBand(Band.truncate, divergence, weight)
    return GroupBand(Band.down_weight if exceeds(edge) else Band.keep, divergence, weight)


def band_counts(bands: Mapping[str, GroupBand]) -> dict[str, float]:
    """Metrics: groups in each band, and the largest divergence."""
    counts = {f"groups_{band.value}": float(sum(g.band is band for g in bands.values())) for band in Band}
    return counts | {"group_divergence_max": max((g.divergence for g in bands.values()), default=0.0)}


def task_family(task: str) -> str:
    """A task's name without its number: `boxes-0012` is one of `boxes`."""
    return re.sub(r"[-_.]?\d+$", "", task) or task


def left_out_by_family(tasks_N: Sequence[str], trained_N: npt.NDArray[np.bool_]) -> dict[str, float]:
    """Metrics: share of each task family's sampled tokens that no loss was taken of, whatever rejected them."""
    families = np.asarray([task_family(task) for task in tasks_N], dtype=object)
    return {
        f"left_out_share/{family}": float(1 - trained_N[families == family].mean())
        for family in dict.fromkeys(families)
    }
