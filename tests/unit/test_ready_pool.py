"""The ready pool: any complete groups, oldest first, each leaving once."""

from __future__ import annotations

from agentrl.controller.scheduling.groups import ClosedGroup, MemberOutcome
from agentrl.controller.scheduling.ready_pool import BARREN_ALLOWANCES, ReadyPool
from agentrl.rollout.verdict import Verdict


def group(seq: int, rewards: tuple[float, ...] = (0.0, 1.0), version: int = 0) -> ClosedGroup:
    outcomes = tuple(MemberOutcome(verdict=Verdict.SUCCESS, reward=r, oldest_version=version) for r in rewards)
    return ClosedGroup(group=f"g{seq}", seq=seq, task="t", outcomes=outcomes)


def pool(groups_per_step: int = 2, lag: int = 1, zero_variance: bool = True, refill: float = 3.0) -> ReadyPool:
    return ReadyPool(
        groups_per_step=groups_per_step, max_policy_lag=lag, drop_zero_variance=zero_variance, max_refill=refill
    )


def test_takes_any_complete_groups_oldest_first() -> None:
    ready = pool()
    for seq in (7, 3, 5):
        assert ready.add(group(seq)) is None
    assert [g.seq for g in ready.take().groups] == [3, 5]
    assert len(ready) == 1
    assert not ready.complete


def test_group_without_variance_is_dropped_but_counts_for_the_sampled_reward() -> None:
    ready = pool()
    assert ready.add(group(0, (1.0, 1.0))) == "zero_variance"
    ready.add(group(1))
    ready.add(group(2))
    selection = ready.take()
    assert [g.seq for g in selection.groups] == [1, 2]
    assert [g.seq for g in selection.consumed] == [0]
    assert selection.reward_sampled == 4 / 6


def test_group_without_variance_is_kept_when_the_filter_is_off() -> None:
    ready = pool(zero_variance=False)
    assert ready.add(group(0, (1.0, 1.0))) is None


def test_consumed_groups_are_charged_to_one_step_only() -> None:
    ready = pool(groups_per_step=1)
    ready.add(group(0, (1.0, 1.0)))
    ready.add(group(1))
    assert len(ready.take().consumed) == 1
    ready.add(group(2))
    assert ready.take().consumed == ()


def test_batch_closes_short_once_refilling_has_used_up_its_allowance() -> None:
    ready = pool(groups_per_step=2, refill=2.0)
    ready.add(group(0))
    for seq in range(1, 3):
        ready.add(group(seq, (1.0, 1.0)))
        assert not ready.complete
    ready.add(group(3, (0.0, 0.0)))
    assert ready.complete
    assert [g.seq for g in ready.take().groups] == [0]


def test_batch_never_closes_without_any_group() -> None:
    ready = pool(refill=1.0)
    for seq in range(10):
        ready.add(group(seq, (1.0, 1.0)))
    assert not ready.complete


def test_group_at_the_bound_of_lag_is_kept_and_one_beyond_it_dropped() -> None:
    ready = pool(lag=1)
    ready.add(group(0, version=1))
    ready.add(group(1, version=2))
    # Step 4 trains version 3: lags are 2 and 1.
    assert [g.seq for g in ready.drop_stale(4)] == [0]
    assert len(ready) == 1
    assert ready.drop_stale(4) == []


def test_many_groups_without_variance_and_none_with_it_teach_nothing() -> None:
    ready = pool(groups_per_step=2, refill=3.0)
    for seq in range(BARREN_ALLOWANCES * 6 - 1):
        ready.add(group(seq, (0.0, 0.0)))
        assert ready.barren() is None
    ready.add(group(100, (1.0, 1.0)))
    assert ready.barren() == "48 groups in a row had equal rewards (mean 0.02)"
    ready.add(group(101))
    assert ready.barren() is None
