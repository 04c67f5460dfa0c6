"""What a warm pool decides: requests first, then what comes next, never beyond its limits, and never back and forth."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agentrl.sandbox.provider import Image, SandboxSpec
from agentrl.sandbox.warm_plan import EMPTY, Kind, Plan, Stock, plan

KINDS = [SandboxSpec(image=Image(workdir=f"/{name}")) for name in "abcd"]
A, B, C, D = KINDS


def decide(
    queue: list[tuple[Kind, int]],
    stocks: dict[Kind, Stock],
    *,
    line: list[Kind] | None = None,
    level: int = 8,
    warm_max: int = 8,
    room: int = 64,
    starts: int = 8,
) -> Plan:
    requests = [kind for kind, stock in stocks.items() for _ in range(stock.waiting)] if line is None else line
    return plan(queue, stocks, requests=requests, level=level, warm_max=warm_max, room=room, starts=starts)


def test_the_first_of_the_queue_are_started_in_its_order() -> None:
    assert decide([(A, 2), (B, 2), (C, 2)], {}, level=3).start == (A, A, B)


def test_what_is_warm_or_coming_is_not_started_again() -> None:
    stocks = {A: Stock(warm=1), B: Stock(coming=2)}
    assert decide([(A, 2), (B, 2)], stocks).start == (A,)


def test_requests_come_before_the_queue_whatever_the_level() -> None:
    decided = decide([(A, 8)], {B: Stock(waiting=2, coming=1)}, level=0)
    assert decided.start == (B,)
    assert decide([(A, 8)], {B: Stock(waiting=2)}, starts=3).start == (B, B, A)


def test_a_start_that_somebody_waits_for_is_not_counted_as_stock() -> None:
    assert decide([(A, 1)], {A: Stock(waiting=1, coming=1)}).start == (A,)


def test_who_came_first_is_served_first_whatever_the_kind() -> None:
    stocks = {A: Stock(waiting=2, coming=1), B: Stock(waiting=2)}
    assert decide([], stocks, line=[A, B, A, B], starts=2).start == (B, A)


def test_what_waits_for_a_place_takes_that_of_warm_ones() -> None:
    stocks = {A: Stock(waiting=2, coming=2), B: Stock(warm=1), C: Stock(warm=2)}
    assert decide([(B, 1), (C, 1)], stocks, room=-2) == Plan(start=(), close=(C, C), abandon=())
    assert decide([(B, 1)], {A: Stock(coming=1), B: Stock(warm=1)}, room=-1).close == (), "nobody waits for it"


def test_an_overdue_start_is_replaced_and_given_up_once_its_replacement_is_up() -> None:
    assert decide([], {A: Stock(waiting=1, overdue=1)}) == Plan(start=(A,), close=(), abandon=())
    assert decide([(A, 1)], {A: Stock(overdue=1)}).start == (A,)
    assert decide([(A, 1)], {A: Stock(overdue=1, coming=1)}) == Plan(start=(), close=(), abandon=())
    assert decide([(A, 1)], {A: Stock(overdue=1, warm=1)}).abandon == (A,)


def test_overdue_starts_make_way_for_requests() -> None:
    decided = decide([(C, 4)], {A: Stock(waiting=2), B: Stock(overdue=1)}, starts=0)
    assert decided == Plan(start=(), close=(), abandon=(B,))
    both = {A: Stock(waiting=1), B: Stock(overdue=1), C: Stock(overdue=1)}
    assert decide([(B, 1), (C, 1)], both, starts=0).abandon == (B,)


def test_a_kind_that_failed_waits() -> None:
    assert decide([(A, 1), (B, 1)], {A: Stock(waiting=1, blocked=True)}).start == (B,)


def test_where_there_is_no_room_requests_take_that_of_what_is_needed_last() -> None:
    stocks = {A: Stock(waiting=1), B: Stock(warm=1), C: Stock(warm=1)}
    assert decide([(B, 1), (C, 1)], stocks, room=0) == Plan(start=(A,), close=(C,), abandon=())
    assert decide([(B, 1)], stocks, room=0).close == (C,)
    assert decide([], {A: Stock(waiting=1)}, room=0).start == (A,), "the provider makes it wait"


def test_where_there_is_no_room_the_queue_takes_only_that_of_what_nobody_expects() -> None:
    assert decide([(A, 1), (B, 1)], {B: Stock(warm=1)}, room=0) == Plan(start=(), close=(), abandon=())
    assert decide([(A, 1)], {B: Stock(warm=1)}, room=0) == Plan(start=(A,), close=(B,), abandon=())
    full = decide([(A, 1)], {B: Stock(warm=8)}, warm_max=8)
    assert full == Plan(start=(A,), close=(B,), abandon=())


def test_nothing_is_closed_as_long_as_there_is_room() -> None:
    assert decide([], {A: Stock(warm=3)}).close == ()


stock_of = st.builds(
    Stock,
    waiting=st.integers(0, 4),
    warm=st.integers(0, 4),
    coming=st.integers(0, 4),
    overdue=st.integers(0, 2),
    blocked=st.booleans(),
).map(lambda stock: replace(stock, warm=0) if stock.waiting else stock)
"""Nobody waits where there is a warm one."""
situations = st.tuples(
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 5)), max_size=6),
    st.dictionaries(st.sampled_from(KINDS), stock_of, max_size=4),
    st.integers(0, 24),
    st.integers(0, 12),
    st.integers(0, 12),
    st.integers(0, 6),
)


def after(decided: Plan, stocks: dict[Kind, Stock]) -> dict[Kind, Stock]:
    """The stocks when a plan has been begun."""
    start, close, abandon = Counter(decided.start), Counter(decided.close), Counter(decided.abandon)
    changed = {}
    for kind in dict.fromkeys([*stocks, *decided.start]):
        stock = stocks.get(kind, EMPTY)
        changed[kind] = replace(
            stock,
            coming=stock.coming + start[kind],
            warm=stock.warm - close[kind],
            overdue=stock.overdue - abandon[kind],
        )
    return changed


@given(situations)
def test_it_stays_within_its_limits(
    situation: tuple[list[tuple[Kind, int]], dict[Kind, Stock], int, int, int, int],
) -> None:
    queue, stocks, level, warm_max, room, starts = situation
    decided = decide(queue, stocks, level=level, warm_max=warm_max, room=room, starts=starts)
    assert len(decided.start) <= starts
    changed = after(decided, stocks)
    assert all(stock.warm >= 0 and stock.overdue >= 0 for stock in changed.values())
    requested = sum(min(max(s.waiting - s.coming, 0), starts) for s in stocks.values() if not s.blocked)
    ahead = max(len(decided.start) - requested, 0)
    if ahead:
        before = sum(stock.spare for stock in stocks.values())
        assert sum(stock.spare for stock in changed.values()) <= max(warm_max, before)
        assert len(decided.start) <= room + len(decided.close)
    assert not any(stocks.get(kind, EMPTY).blocked for kind in decided.start)


@given(situations)
def test_no_request_is_passed_over(
    situation: tuple[list[tuple[Kind, int]], dict[Kind, Stock], int, int, int, int],
) -> None:
    """As long as anything may be started, it is for a request; and overdue starts are no reason to wait."""
    queue, stocks, level, warm_max, room, starts = situation
    decided = decide(queue, stocks, level=level, warm_max=warm_max, room=room, starts=starts)
    missing = sum(max(s.waiting - s.coming, 0) for s in stocks.values() if not s.blocked)
    changed = after(decided, stocks)
    unserved = sum(max(s.waiting - s.coming, 0) for s in changed.values() if not s.blocked)
    assert unserved == max(missing - starts, 0)
    if unserved:
        overdue = sum(stock.overdue for stock in stocks.values())
        assert len(decided.abandon) >= min(unserved, overdue)


@given(situations)
def test_what_was_decided_is_not_undone(
    situation: tuple[list[tuple[Kind, int]], dict[Kind, Stock], int, int, int, int],
) -> None:
    """Decided again at once, there is nothing left to do but what the limits held back; nothing is closed for what was
    just closed."""
    queue, stocks, level, warm_max, room, starts = situation
    decided = decide(queue, stocks, level=level, warm_max=warm_max, room=room, starts=starts)
    assert not set(decided.start) & set(decided.close)
    again = decide(
        queue,
        after(decided, stocks),
        level=level,
        warm_max=warm_max,
        room=max(room - len(decided.start) + len(decided.close), 0),
        starts=starts - len(decided.start),
    )
    assert again.start == ()
    assert again.close == ()
