"""What is launched next, as far as it is known."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.controller.scheduling.upcoming import upcoming


def following() -> Iterator[str]:
    return (f"next-{number}" for number in range(1000))


def test_pending_members_come_first_then_the_groups_after_them() -> None:
    coming = upcoming([("a", 2), ("b", 1)], following(), num_openable=2, group_size=4, slots=64, horizon=64)
    assert coming.tasks == (("a", 2), ("b", 1), ("next-0", 4), ("next-1", 4))
    assert coming.due == 11


def test_no_more_is_due_than_may_act() -> None:
    assert upcoming([("a", 8)], following(), num_openable=2, group_size=4, slots=3, horizon=64).due == 3
    assert upcoming([("a", 8)], following(), num_openable=2, group_size=4, slots=0, horizon=64).due == 0


def test_it_looks_no_further_than_asked() -> None:
    coming = upcoming([("a", 3)], following(), num_openable=100, group_size=4, slots=64, horizon=10)
    assert coming.tasks == (("a", 3), ("next-0", 4), ("next-1", 4))
    assert upcoming([("a", 3)], following(), num_openable=100, group_size=4, slots=9, horizon=0).tasks == (("a", 3),)


def test_what_can_not_be_opened_is_not_expected() -> None:
    assert upcoming([], following(), num_openable=-3, group_size=4, slots=64, horizon=64).tasks == ()
