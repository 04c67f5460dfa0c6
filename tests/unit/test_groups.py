"""Open groups: every member stands or is repaired, every group closes once."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.controller.scheduling.groups import GroupBook, Launch, MemberOutcome
from agentrl.rollout.verdict import Verdict


def success(reward: float = 1.0, version: int = 0) -> MemberOutcome:
    return MemberOutcome(verdict=Verdict.SUCCESS, reward=reward, oldest_version=version)


INFRA = MemberOutcome(verdict=Verdict.INFRA_FAILURE)
UNCERTAIN = MemberOutcome(verdict=Verdict.UNCERTAIN)


def book(size: int = 2, retries: int = 1, min_usable: int = 2) -> GroupBook:
    made = GroupBook(group_size=size, max_infra_retries=retries, min_usable=min_usable)
    made.open("g0", seq=0, task="t")
    return made


def test_launches_oldest_group_first_and_never_more_than_slots() -> None:
    groups = book()
    groups.open("g1", seq=1, task="t")
    assert [(x.group, x.member) for x in groups.launch(3)] == [("g0", 0), ("g0", 1), ("g1", 0)]
    assert groups.num_running == 3
    assert groups.has_pending()


def test_group_closes_when_its_last_member_ends() -> None:
    groups = book()
    groups.launch(2)
    assert groups.end("g0", 1, success(0.0)) is None
    closed = groups.end("g0", 0, success(1.0))
    assert closed is not None
    assert closed.reason is None
    assert closed.rewards == (1.0, 0.0)
    assert len(groups) == 0


def test_member_lost_to_infrastructure_is_run_again_with_the_next_attempt_number() -> None:
    groups = book()
    groups.launch(2)
    assert groups.end("g0", 0, INFRA) is None
    assert [(x.member, x.attempt) for x in groups.launch(5)] == [(0, 1)]


def test_member_that_keeps_being_lost_is_given_up_and_its_group_dropped_below_min_usable() -> None:
    groups = book(retries=1)
    groups.launch(2)
    groups.end("g0", 1, success())
    groups.end("g0", 0, INFRA)
    groups.launch(1)
    closed = groups.end("g0", 0, INFRA)
    assert closed is not None
    assert closed.reason is not None
    assert closed.reason.startswith("too_few_usable")


def test_group_with_enough_usable_members_is_ready_without_the_lost_ones() -> None:
    groups = book(size=3, retries=0, min_usable=2)
    groups.launch(3)
    groups.end("g0", 0, INFRA)
    groups.end("g0", 1, success(1.0))
    closed = groups.end("g0", 2, success(0.0))
    assert closed is not None
    assert (closed.reason, closed.rewards) == (None, (1.0, 0.0))


def test_uncertain_member_is_neither_repaired_nor_counted() -> None:
    groups = book(size=3)
    groups.launch(3)
    groups.end("g0", 0, UNCERTAIN)
    groups.end("g0", 1, success(1.0))
    closed = groups.end("g0", 2, success(0.0))
    assert closed is not None
    assert len(closed.outcomes) == 2


def test_oldest_version_of_a_group_is_that_of_its_oldest_token() -> None:
    groups = book()
    groups.launch(2)
    groups.end("g0", 0, success(version=3))
    closed = groups.end("g0", 1, success(version=1))
    assert closed is not None
    assert closed.oldest_version == 1


def test_restored_members_are_not_started_again() -> None:
    groups = book()
    groups.restore("g0", 0, attempts=2, outcome=success())
    groups.restore("g0", 1, attempts=1, outcome=None)
    assert [(x.member, x.attempt) for x in groups.launch(5)] == [(1, 1)]


def test_first_usable_members_make_the_group_and_the_others_are_surplus() -> None:
    groups = GroupBook(group_size=2, extra_members=2, max_infra_retries=1, min_usable=2)
    groups.open("g0", seq=0, task="t")
    assert len(groups.launch(9)) == 4
    assert groups.end("g0", 3, success(0.0)) is None
    assert groups.end("g0", 1, UNCERTAIN) is None
    closed = groups.end("g0", 0, success(1.0))
    assert closed is not None
    assert (closed.rewards, closed.surplus, closed.reason) == ((1.0, 0.0), (2,), None)


def test_an_extra_member_stands_in_for_one_that_is_lost_for_good() -> None:
    groups = GroupBook(group_size=2, extra_members=1, max_infra_retries=0, min_usable=2)
    groups.open("g0", seq=0, task="t")
    groups.launch(3)
    assert groups.end("g0", 0, INFRA) is None
    assert groups.end("g0", 1, success(1.0)) is None
    closed = groups.end("g0", 2, success(0.0))
    assert closed is not None
    assert (len(closed.outcomes), closed.surplus) == (2, ())


def test_a_group_is_cut_without_the_members_that_run() -> None:
    groups = book(size=3, min_usable=2)
    groups.launch(2)
    groups.end("g0", 0, success(1.0))
    assert groups.lagging() == {}
    groups.launch(1)
    groups.end("g0", 1, success(0.0))
    assert groups.lagging() == {"g0": (2,)}
    closed = groups.cut("g0")
    assert (closed.surplus, closed.reason, closed.rewards) == ((2,), None, (1.0, 0.0))
    assert len(groups) == 0


def test_the_oldest_open_group_is_known() -> None:
    groups = book()
    groups.open("g1", seq=1, task="t")
    assert groups.oldest_seq == 0
    groups.cut("g0")
    assert groups.oldest_seq == 1
    groups.cut("g1")
    assert groups.oldest_seq is None


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(0, 2), st.integers(1, 5))
def test_every_group_closes_exactly_once_whatever_happens(seed: int, size: int, retries: int, min_usable: int) -> None:
    rng = random.Random(seed)
    groups = GroupBook(group_size=size, max_infra_retries=retries, min_usable=min_usable)
    for seq in range(4):
        groups.open(f"g{seq}", seq=seq, task="t")
    closed: list[str] = []
    attempts: set[tuple[str, int, int]] = set()

    def launched(slots: int) -> list[Launch]:
        launches = groups.launch(slots)
        for new in launches:
            key = (new.group, new.member, new.attempt)
            assert key not in attempts
            attempts.add(key)
        return launches

    live = launched(3)
    while live:
        launch = live.pop(rng.randrange(len(live)))
        outcome = rng.choice([success(1.0), success(0.0), INFRA, UNCERTAIN])
        if (group := groups.end(launch.group, launch.member, outcome)) is not None:
            closed.append(group.group)
            usable = len(group.outcomes)
            assert (group.reason is None) == (usable >= min(min_usable, size))
        live += launched(rng.randrange(3)) or ([] if live else launched(1))
    assert sorted(closed) == ["g0", "g1", "g2", "g3"]
    assert max(a for _, _, a in attempts) <= retries


def test_end_of_a_member_that_does_not_run_is_refused() -> None:
    with pytest.raises(KeyError):
        book().end("g0", 0, success())
