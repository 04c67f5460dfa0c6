"""Who starts first when not all can, and who is not waited for."""

from __future__ import annotations

from agentrl.controller.scheduling.order import Candidate, in_order
from agentrl.controller.scheduling.stragglers import Lagging, cut


def candidate(
    group: str, *, seq: int = 0, task: str = "t", attempt: int = 0, num_missing: int = 4, begun: bool = True
) -> Candidate:
    return Candidate(group=group, seq=seq, task=task, member=0, attempt=attempt, num_missing=num_missing, begun=begun)


def order(*candidates: Candidate, expected: dict[str, float] | None = None) -> list[str]:
    known = expected or {}
    return [c.group for c in in_order(candidates, expected=lambda task: known.get(task, 0.0))]


def test_what_runs_again_comes_first() -> None:
    assert order(candidate("a", seq=0, num_missing=1), candidate("b", seq=9, attempt=1)) == ["b", "a"]


def test_a_group_that_needs_one_more_comes_before_one_that_needs_many_and_before_new_ones() -> None:
    new = candidate("new", seq=0, begun=False, num_missing=4)
    assert order(new, candidate("many", seq=1, num_missing=3), candidate("one", seq=2, num_missing=1)) == [
        "one",
        "many",
        "new",
    ]


def test_among_equals_the_expected_longest_comes_first_and_then_the_oldest() -> None:
    expected = {"long": 100.0, "short": 10.0}
    candidates = (
        candidate("a", seq=0, task="short"),
        candidate("b", seq=2, task="long"),
        candidate("c", seq=1, task="long"),
    )
    assert order(*candidates, expected=expected) == ["c", "b", "a"]


def lagging(*remaining_s: float | None, num_usable: int = 2, ended_s: tuple[float, ...] = (10.0, 30.0)) -> Lagging:
    return Lagging(num_usable=num_usable, ended_s=ended_s, remaining_s=remaining_s)


def test_members_that_are_expected_to_take_long_are_cut() -> None:
    assert cut(lagging(41.0), min_usable=2, factor=2.0)
    assert not cut(lagging(39.0), min_usable=2, factor=2.0)


def test_a_group_waits_for_one_that_is_nearly_done_even_if_another_is_not() -> None:
    assert not cut(lagging(500.0, 5.0), min_usable=2, factor=2.0)


def test_nobody_is_cut_where_too_few_would_be_left_or_nothing_is_known() -> None:
    assert not cut(lagging(500.0, num_usable=1), min_usable=2, factor=2.0)
    assert not cut(lagging(None), min_usable=2, factor=2.0)
