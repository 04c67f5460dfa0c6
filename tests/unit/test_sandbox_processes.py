"""Whom a timeout kills: what its command started, whatever number that has, and nothing that was there before."""

from __future__ import annotations

from agentrl.sandbox.supervisor.crowd import Process, Seen, descendants, newcomers


def seen(pid: int, parent: int, *, started: int = 0, state: str = "S") -> Seen:
    return Seen(Process(pid, started or pid), state, parent)


def pids(found: list[Seen]) -> list[int]:
    return [one.process.pid for one in found]


DAEMON = seen(5, 1)
EARLIER = frozenset({DAEMON.process})


def test_children_of_a_command_also_those_that_left_it() -> None:
    now = [DAEMON, seen(9, 0), seen(10, 9), seen(11, 1)]
    assert pids(newcomers(now, EARLIER)) == [9, 10, 11]


def test_what_was_there_before_and_what_that_started_meanwhile_is_spared() -> None:
    now = [DAEMON, seen(12, 5), seen(13, 12), seen(14, 1)]
    assert pids(newcomers(now, EARLIER)) == [14]


def test_a_number_that_is_given_out_again_is_another_process() -> None:
    again = seen(5, 9, started=700)
    now = [again, seen(9, 0), seen(15, 5)]
    assert pids(newcomers(now, EARLIER)) == [5, 9, 15]


def test_parents_that_are_not_seen_or_go_in_a_circle_end_the_search() -> None:
    assert pids(newcomers([seen(20, 99)], EARLIER)) == [20]
    assert pids(newcomers([seen(20, 21), seen(21, 20)], EARLIER)) == [20, 21]
    assert newcomers([], EARLIER) == []


def test_descendants_are_found_through_any_number_of_parents_and_nobody_else_is() -> None:
    now = [seen(9, 7), seen(10, 9), seen(30, 10), seen(31, 30), seen(8, 1), seen(12, 8), seen(40, 41), seen(41, 40)]
    assert sorted(pids(descendants(7, now))) == [9, 10, 30, 31]
    assert descendants(99, now) == []
