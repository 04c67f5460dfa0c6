"""A batch as flat token arrays, and the plan of who computes what. Pure functions over numpy arrays.

Every rank holds the whole batch (it is small beside the model) and computes the same plan from it, so ranks agree
without talking. Sampled tokens (mask 1) are numbered through the batch in order: axis N. B is a row of a micro-batch,
T a position in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from agentrl.trainer.advantages import group_advantages, shaped_rewards
from agentrl.trainer.config import AlgorithmConfig
from agentrl.wire import Trajectory

_PASS_TOKENS = 128
"""What one more pass costs, in tokens: about 200 for the tiny model on a CPU, and 20 for one of 30M parameters."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class FlatBatch:
    """The sampled tokens of all trajectories, one after the other."""

    trajectories: list[Trajectory]
    """Of one sequence each; an episode has as many as it fell into."""
    positions: list[Ints]
    """Per trajectory: positions of its sampled tokens."""
    offsets: Ints
    """[num_trajectories + 1]: trajectory i owns tokens offsets[i] up to offsets[i + 1] of axis N."""
    behaviour_N: Floats
    """Log-prob under the policy version that sampled it."""
    versions_N: Ints
    """Policy version that sampled it."""
    advantages_N: Floats

    @property
    def num_sampled(self) -> int:
        return int(self.offsets[-1])

    @property
    def owners(self) -> Ints:
        """The trajectory that each sampled token belongs to."""
        return np.repeat(np.arange(len(self.trajectories)), np.diff(self.offsets))

    def of_tokens(self, names: Sequence[str]) -> list[str]:
        """Its trajectory's name at each sampled token; `names` has one for each trajectory."""
        return [names[row] for row in self.owners.tolist()]

    def tokens_of(self, rows: Sequence[int]) -> Ints:
        """Axis-N indices of the sampled tokens of these trajectories, in their order."""
        spans = [np.arange(self.offsets[row], self.offsets[row + 1]) for row in rows]
        return np.concatenate(spans) if spans else np.zeros(0, dtype=np.int64)

    def input_lengths(self) -> list[int]:
        """Per trajectory: tokens that the model reads to predict its last sampled one. 0 if none was sampled."""
        return [int(positions[-1]) if positions.size else 0 for positions in self.positions]

    def episodes_of(self, tokens_N: Ints) -> list[str]:
        """Episodes that own these axis-N indices, in batch order."""
        rows = np.unique(np.searchsorted(self.offsets, tokens_N, side="right") - 1)
        return list(dict.fromkeys(self.trajectories[row].episode for row in rows))


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """One forward pass of one rank: rows padded on the right, which causal attention never looks at."""

    ids_BT: Ints
    rows_N: Ints
    columns_N: Ints
    """Where the model predicts each sampled token of this micro-batch: one before its position."""
    targets_N: Ints
    """The sampled token ids."""
    tokens_N: Ints
    """Their indices on the batch's axis N."""


def flatten(trajectories: list[Trajectory], algorithm: AlgorithmConfig) -> FlatBatch:
    """Trajectories as flat token arrays, each sampled token with its episode's advantage.

    An episode of several sequences is one in its group's baseline, and each of them is a row with its advantage.
    """
    rewards = shaped_rewards([t.reward for t in trajectories], [t.longest for t in trajectories], algorithm)
    of_episodes = group_advantages(rewards.tolist(), [t.group for t in trajectories], algorithm.advantage)
    pairs = zip(trajectories, of_episodes, strict=True)
    rows = [(sequence, advantage) for whole, advantage in pairs for sequence in whole.sequences()]
    sequences, advantages = [row for row, _ in rows], np.array([one for _, one in rows], dtype=np.float32)
    positions = [np.flatnonzero(t.mask_array()) for t in sequences]
    counts = [p.size for p in positions]
    behaviour = [t.logprobs_array()[p] for t, p in zip(sequences, positions, strict=True)]
    versions = [t.versions_array()[p] for t, p in zip(sequences, positions, strict=True)]
    return FlatBatch(
        trajectories=sequences,
        positions=positions,
        offsets=np.cumsum([0, *counts], dtype=np.int64),
        behaviour_N=np.concatenate(behaviour),
        versions_N=np.concatenate(versions).astype(np.int64),
        advantages_N=np.repeat(advantages, counts),
    )


def problems(trajectories: Sequence[Trajectory], vocab_size: int) -> dict[str, str]:
    """Episodes that cannot be trained on: {episode: reason}. Empty for a sound batch."""
    checked = {t.episode: _problem(t, vocab_size) for t in trajectories}
    return {episode: reason for episode, reason in checked.items() if reason}


def _problem(trajectory: Trajectory, vocab_size: int) -> str | None:
    ids, mask = trajectory.ids_array(), trajectory.mask_array()
    logprobs, versions = trajectory.logprobs_array(), trajectory.versions_array()
    if not ids.size == mask.size == logprobs.size == versions.size > 0:
        return f"arrays of {ids.size} ids, {mask.size} mask, {logprobs.size} logprobs, {versions.size} versions"
    if ids.min() < 0 or ids.max() >= vocab_size:
        return f"token ids from {ids.min()} to {ids.max()} with a vocabulary of {vocab_size}"
    if trajectory.starts[0] or any(a >= b for a, b in pairwise((*trajectory.starts, mask.size))):
        return f"sequences that begin at {trajectory.starts} of {mask.size} tokens"
    if mask[list(trajectory.starts)].any():
        return "the first token of a sequence is marked as sampled"
    if not np.isfinite(trajectory.reward):
        return f"reward {trajectory.reward}"
    if not np.isfinite(logprobs[mask == 1]).all():
        return "a behaviour log-prob is not finite"
    return None


def split_updates(groups: Sequence[str], num_updates: int) -> list[list[int]]:
    """Trajectory indices of each optimizer update: whole groups, in batch order, as evenly as whole groups allow.

    `groups` names each trajectory's group. Fewer groups than `num_updates` give fewer updates.
    """
    names = list(dict.fromkeys(groups))
    update_of = {name: place * min(num_updates, len(names)) // len(names) for place, name in enumerate(names)}
    updates: list[list[int]] = [[] for _ in range(min(num_updates, len(names)))]
    for row, group in enumerate(groups):
        updates[update_of[group]].append(row)
    return updates


def plan_ranks(rows: Sequence[int], lengths: Sequence[int], world_size: int, max_tokens: int) -> list[list[list[int]]]:
    """[rank][micro-batch] -> trajectory indices. Every rank gets equally many micro-batches; an empty one is a dummy.

    Collectives inside the model meet only if every rank makes as many forward passes. `lengths` is indexed by
    trajectory; those of length 0 have nothing to train on and are left out.
    """
    shares = _balance([row for row in rows if lengths[row]], lengths, world_size)
    plan = [_micro_batches(share, lengths, max_tokens) for share in shares]
    most = max(len(micro_batches) for micro_batches in plan)
    return [micro_batches + [[] for _ in range(most - len(micro_batches))] for micro_batches in plan]


def _balance(rows: Sequence[int], lengths: Sequence[int], world_size: int) -> list[list[int]]:
    """Longest first, each to the rank with the fewest tokens (at most 4/3 of the best split, Graham 1969)."""
    shares: list[list[int]] = [[] for _ in range(world_size)]
    loads = [0] * world_size
    for row in sorted(rows, key=lambda row: (-lengths[row], row)):
        rank = loads.index(min(loads))
        shares[rank].append(row)
        loads[rank] += lengths[row]
    return shares


def _micro_batches(rows: Sequence[int], lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Cut rows (longest first) where padding and passes together cost least, each pass within `max_tokens`.

    A pass costs rows x longest row, its padded tokens, and `_PASS_TOKENS`; a row over the limit goes alone. Cuts of a
    sorted list are found exactly, from the shortest row up: cost[i] = min over the first pass of rows[i:].
    """
    cost = [0] * (len(rows) + 1)
    ends = [0] * len(rows)
    for start in reversed(range(len(rows))):
        longest = lengths[rows[start]]
        most = max(1, max_tokens // longest)
        choices = range(start + 1, min(len(rows), start + most) + 1)
        ends[start] = min(choices, key=lambda end: longest * (end - start) + cost[end])
        cost[start] = longest * (ends[start] - start) + cost[ends[start]] + _PASS_TOKENS
    micro_batches: list[list[int]] = []
    start = 0
    while start < len(rows):
        micro_batches.append(list(rows[start : ends[start]]))
        start = ends[start]
    return micro_batches


def collate(batch: FlatBatch, rows: Sequence[int]) -> MicroBatch:
    """The padded arrays of a micro-batch. No rows: a dummy of one token that predicts nothing."""
    lengths = batch.input_lengths()
    ids_BT = np.zeros((max(1, len(rows)), max((lengths[row] for row in rows), default=1)), dtype=np.int64)
    targets = []
    for place, row in enumerate(rows):
        ids = batch.trajectories[row].ids_array()
        ids_BT[place, : lengths[row]] = ids[: lengths[row]]
        targets.append(ids[batch.positions[row]])
    empty = np.zeros(0, dtype=np.int64)
    return MicroBatch(
        ids_BT=ids_BT,
        rows_N=np.repeat(np.arange(len(rows)), [batch.positions[row].size for row in rows]),
        columns_N=np.concatenate([batch.positions[row] - 1 for row in rows]) if rows else empty,
        targets_N=np.concatenate(targets).astype(np.int64) if rows else empty,
        tokens_N=batch.tokens_of(rows),
    )
