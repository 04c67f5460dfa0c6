"""What a warm pool starts, closes and gives up next. Pure.

Requests that wait come first, in the order in which they came. Then the sandboxes that the queue says come next are
started ahead, as many as `level` says are needed by the time they are up. Both within the limits of the machine:
`room` and `starts`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from agentrl.sandbox.provider import SandboxSpec, Snapshot


@dataclass(frozen=True)
class Fork:
    """A sandbox that starts with the files of a snapshot: nobody knows of it before it is asked for."""

    spec: SandboxSpec
    snapshot: Snapshot


Kind: TypeAlias = SandboxSpec | Fork
"""What sandboxes of the pool are told apart by: a specification without owner, and perhaps a snapshot."""


@dataclass(frozen=True, kw_only=True)
class Stock:
    """What there is of one kind."""

    waiting: int = 0
    """Requests that nothing could be handed to."""
    warm: int = 0
    """Up, and nobody's."""
    coming: int = 0
    """Starts in flight that may still be expected to end soon."""
    overdue: int = 0
    """Starts in flight that take too long: others are started in their place, and the first one up wins."""
    blocked: bool = False
    """Its last start failed, and the next one has to wait."""

    @property
    def spare(self) -> int:
        """Sandboxes that will be left when all that wait were served."""
        return self.warm + max(self.coming - self.waiting, 0)


EMPTY = Stock()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """In this order; a kind may stand more than once."""

    start: tuple[Kind, ...]
    close: tuple[Kind, ...]
    """Of each the warm one that is the longest there."""
    abandon: tuple[Kind, ...]
    """Of each the overdue start that is the longest in flight."""


def plan(
    queue: Sequence[tuple[Kind, int]],
    stocks: Mapping[Kind, Stock],
    *,
    requests: Sequence[Kind],
    level: int,
    warm_max: int,
    room: int,
    starts: int,
) -> Plan:
    """Decide.

    `queue`: kinds with the number of sandboxes that will be asked for, in this order. `stocks`: kinds that there is
    anything of. `requests`: the kinds of those that wait, in line. `level`: how many of the queue are to be up
    or coming. `room`: further sandboxes that fit now; below 0, so many starts wait for a place. `starts`: further
    starts that may be in flight at once.
    """
    planning = _Planning(stocks=stocks, expected=_total(queue), room=room, starts=starts)
    planning.make_room(min(-room, len(requests)))
    coming = {kind: stock.coming for kind, stock in stocks.items()}
    for kind in requests:
        if coming[kind] > 0:
            coming[kind] -= 1
        elif not stocks[kind].blocked:
            planning.serve(kind)
    wanted = _first(queue, min(level, warm_max))
    for kind, count in wanted.items():
        stock = stocks.get(kind, EMPTY)
        if not stock.blocked:
            planning.prepare(kind, count - stock.spare, warm_max)
    planning.abandon += [
        kind
        for kind, stock in stocks.items()
        if stock.waiting == 0 and stock.warm >= wanted.get(kind, 0)
        for _ in range(stock.overdue - planning.abandon.count(kind))
    ]
    return Plan(start=tuple(planning.start), close=tuple(planning.close), abandon=tuple(planning.abandon))


@dataclass(kw_only=True)
class _Planning:
    """A plan in the making."""

    stocks: Mapping[Kind, Stock]
    expected: Mapping[Kind, int]
    """All of the queue, in its order."""
    room: int
    starts: int
    start: list[Kind] = field(default_factory=list)
    close: list[Kind] = field(default_factory=list)
    abandon: list[Kind] = field(default_factory=list)

    def make_room(self, missing: int) -> None:
        """Close what nobody waits for, for starts that wait for a place."""
        for _ in range(missing):
            self._close_one(self._last_expected())

    def serve(self, kind: Kind) -> None:
        """Start what a request waits for, whatever has to go for it. Without any room the provider makes it wait."""
        if self.starts == 0:
            self._give_up_one()
            return
        if self.room <= 0:
            self._close_one(self._last_expected())
        self._start(kind)

    def prepare(self, kind: Kind, missing: int, warm_max: int) -> None:
        """Start ahead, in the place of what nobody expects any more where there is no other."""
        for _ in range(missing):
            if self.starts == 0:
                return
            if (self.room <= 0 or self._num_spare() >= warm_max) and not self._close_one(self._unexpected()):
                return
            if self.room > 0:
                self._start(kind)

    def _start(self, kind: Kind) -> None:
        self.start.append(kind)
        self.starts -= 1
        self.room -= 1

    def _give_up_one(self) -> None:
        for kind, stock in self.stocks.items():
            if stock.overdue > self.abandon.count(kind):
                self.abandon.append(kind)
                return

    def _close_one(self, kind: Kind | None) -> bool:
        if kind is None:
            return False
        self.close.append(kind)
        self.room += 1
        return True

    def _unexpected(self) -> Kind | None:
        """A kind with a warm sandbox that the queue does not ask for."""
        return next((kind for kind in self.stocks if self._closable(kind) > self.expected.get(kind, 0)), None)

    def _last_expected(self) -> Kind | None:
        """A kind with a warm sandbox that is asked for last, if at all."""
        last = (kind for kind in reversed(list(self.expected)) if self._closable(kind) > 0)
        return self._unexpected() or next(last, None)

    def _closable(self, kind: Kind) -> int:
        return self.stocks.get(kind, EMPTY).warm - self.close.count(kind)

    def _num_spare(self) -> int:
        """Sandboxes that nobody waits for, with those that this plan starts and without those that it closes."""
        waited_for = sum(max(stock.waiting - stock.coming, 0) for stock in self.stocks.values() if not stock.blocked)
        ahead = max(len(self.start) - waited_for, 0)
        return sum(stock.spare for stock in self.stocks.values()) + ahead - len(self.close)


def _total(queue: Sequence[tuple[Kind, int]]) -> dict[Kind, int]:
    total: dict[Kind, int] = {}
    for kind, count in queue:
        total[kind] = total.get(kind, 0) + count
    return total


def _first(queue: Sequence[tuple[Kind, int]], level: int) -> dict[Kind, int]:
    """How many of each kind are among the first `level` of the queue."""
    first: dict[Kind, int] = {}
    for kind, count in queue:
        taken = min(count, level)
        if taken <= 0:
            break
        first[kind] = first.get(kind, 0) + taken
        level -= taken
    return first
