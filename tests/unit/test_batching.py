"""The plan of a step: nothing is lost, nothing twice, ranks agree, and arrays line up with the model's predictions."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.trainer.batching import collate, flatten, plan_ranks, problems, split_updates
from agentrl.trainer.config import AlgorithmConfig
from agentrl.wire import Trajectory
from tests.fixtures.trainer_run import make_batch

lengths_lists = st.lists(st.integers(0, 60), min_size=1, max_size=40)


def _trajectory(ids: list[int], mask: list[int], **changes: object) -> Trajectory:
    trajectory = Trajectory(
        episode="e",
        group="g",
        task="t",
        reward=1.0,
        ids=np.array(ids, dtype=np.int32).tobytes(),
        mask=np.array(mask, dtype=np.uint8).tobytes(),
        logprobs=np.array([-0.5 * (1 + i) * m for i, m in enumerate(mask)], dtype=np.float32).tobytes(),
        versions=np.array([3 if m else -1 for m in mask], dtype=np.int32).tobytes(),
        num_turns=1,
    )
    return msgspec.structs.replace(trajectory, **changes)


@given(lengths_lists, st.integers(1, 4), st.integers(1, 200))
def test_every_trajectory_with_something_to_train_is_planned_once(lengths: list[int], ranks: int, limit: int) -> None:
    plan = plan_ranks(range(len(lengths)), lengths, ranks, limit)
    planned = sorted(row for rank in plan for micro in rank for row in micro)
    assert planned == [row for row, length in enumerate(lengths) if length]


def _cost(passes: list[list[int]]) -> int:
    """Padded tokens, and 128 a pass."""
    return sum(max(lengths) * len(lengths) + 128 for lengths in passes)


@given(st.lists(st.integers(1, 400), min_size=1, max_size=8), st.integers(400, 1200))
def test_passes_are_cut_where_padding_and_passes_together_cost_least(lengths: list[int], limit: int) -> None:
    (planned,) = plan_ranks(range(len(lengths)), lengths, 1, limit)
    ordered = sorted(lengths, reverse=True)
    possible = []
    for choice in itertools.product([False, True], repeat=len(ordered) - 1):
        cuts = [0, *(place + 1 for place, cut in enumerate(choice) if cut), len(ordered)]
        passes = [ordered[start:end] for start, end in itertools.pairwise(cuts)]
        if all(max(rows) * len(rows) <= limit for rows in passes):
            possible.append(_cost(passes))
    assert _cost([[lengths[row] for row in micro] for micro in planned]) == min(possible)


@given(lengths_lists, st.integers(1, 4), st.integers(1, 200))
def test_ranks_make_equally_many_passes_within_the_token_limit(lengths: list[int], ranks: int, limit: int) -> None:
    plan = plan_ranks(range(len(lengths)), lengths, ranks, limit)
    assert len(plan) == ranks
    assert len({len(rank) for rank in plan}) == 1
    for micro in (micro for rank in plan for micro in rank if len(micro) > 1):
        assert max(lengths[row] for row in micro) * len(micro) <= limit


@given(lengths_lists, st.integers(1, 4))
def test_token_loads_of_ranks_differ_by_at_most_one_trajectory(lengths: list[int], ranks: int) -> None:
    plan = plan_ranks(range(len(lengths)), lengths, ranks, 100)
    loads = [sum(lengths[row] for micro in rank for row in micro) for rank in plan]
    assert max(loads) - min(loads) <= max(lengths)


@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=30), st.integers(1, 7))
def test_updates_take_whole_groups_evenly(groups: list[str], num_updates: int) -> None:
    updates = split_updates(groups, num_updates)
    assert sorted(row for update in updates for row in update) == list(range(len(groups)))
    owners = [{groups[row] for row in update} for update in updates]
    assert sum(map(len, owners)) == len(set(groups))
    assert len(updates) == min(num_updates, len(set(groups)))
    assert max(map(len, owners)) - min(map(len, owners)) <= 1


def test_a_micro_batch_predicts_each_sampled_token_from_the_position_before_it() -> None:
    trajectories = [_trajectory([1, 2, 3, 4, 5], [0, 0, 1, 1, 0]), _trajectory([6, 7, 8], [0, 1, 0])]
    batch = flatten(trajectories, AlgorithmConfig())
    micro = collate(batch, [1, 0])
    assert micro.ids_BT.tolist() == [[6, 0, 0], [1, 2, 3]]  # what comes after the last prediction is not read
    assert micro.rows_N.tolist() == [0, 1, 1]
    assert micro.columns_N.tolist() == [0, 1, 2]
    assert micro.targets_N.tolist() == [7, 3, 4]
    assert micro.tokens_N.tolist() == [2, 0, 1]
    assert batch.behaviour_N[micro.tokens_N].tolist() == [-1.0, -1.5, -2.0]


def test_an_empty_micro_batch_is_a_dummy_that_predicts_nothing() -> None:
    micro = collate(flatten(make_batch().trajectories, AlgorithmConfig()), [])
    assert micro.ids_BT.shape == (1, 1)
    assert not any(axis.size for axis in (micro.rows_N, micro.columns_N, micro.targets_N, micro.tokens_N))


def test_tokens_know_their_episode_and_carry_its_advantage() -> None:
    trajectories = make_batch(num_groups=2, group_size=2).trajectories
    batch = flatten(trajectories, AlgorithmConfig())
    for row, trajectory in enumerate(trajectories):
        tokens_N = batch.tokens_of([row])
        assert len(tokens_N) == trajectory.num_sampled
        assert batch.episodes_of(tokens_N) == [trajectory.episode]
        assert set(batch.advantages_N[tokens_N]) == {trajectory.reward - 0.5}


@pytest.mark.parametrize(
    ("trajectory", "reason"),
    [
        (_trajectory([1, 30], [0, 1]), "token ids from 1 to 30 with a vocabulary of 30"),
        (_trajectory([1, -2], [0, 1]), "token ids from -2 to 1"),
        (_trajectory([1, 2], [1, 1]), "the first token of a sequence is marked as sampled"),
        (_trajectory([1, 2, 3], [0, 1]), "arrays of 3 ids, 2 mask"),
        (_trajectory([], []), "arrays of 0 ids"),
        (_trajectory([1, 2], [0, 1], reward=float("nan")), "reward nan"),
        (_trajectory([1, 2], [0, 1], logprobs=np.array([0, np.inf], dtype=np.float32).tobytes()), "log-prob"),
    ],
)
def test_a_trajectory_that_cannot_be_trained_on_is_named_with_the_reason(trajectory: Trajectory, reason: str) -> None:
    found = problems([_trajectory([1, 2], [0, 1], episode="sound"), trajectory], vocab_size=30)
    assert list(found) == ["e"]
    assert reason in found["e"]


def test_an_episode_of_several_sequences_counts_once_and_trains_each_token_once() -> None:
    both = _trajectory([5, 6, 7, 5, 8, 9], [0, 1, 1, 0, 0, 1], starts=(0, 3), reward=1.0)
    other = _trajectory([5, 6], [0, 1], episode="f", reward=0.0)
    batch = flatten([both, other], AlgorithmConfig())
    assert [t.ids_array().tolist() for t in batch.trajectories] == [[5, 6, 7], [5, 8, 9], [5, 6]]
    assert batch.advantages_N.tolist() == [0.5, 0.5, 0.5, -0.5]
    assert batch.behaviour_N.tolist() == [-1.0, -1.5, -3.0, -1.0]
    assert batch.episodes_of(np.arange(4)) == ["e", "f"]
    assert collate(batch, [1]).targets_N.tolist() == [9]


@pytest.mark.parametrize("starts", [(1,), (0, 0), (0, 4), (0, 3, 2)])
def test_sequences_that_do_not_divide_an_episode_are_a_problem(starts: tuple[int, ...]) -> None:
    assert "sequences" in problems([_trajectory([1, 2, 3, 4], [0, 1, 0, 1], starts=starts)], 9)["e"]


def test_a_sequence_that_begins_with_a_sampled_token_is_a_problem() -> None:
    assert problems([_trajectory([1, 2, 3, 4], [0, 1, 1, 1], starts=(0, 2))], 9)
