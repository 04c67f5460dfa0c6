"""A sandbox's lifetime: from its hand-out on, and not while it is frozen."""

from __future__ import annotations

import time

import pytest

from agentrl.sandbox.supervisor.lifetime import Lifetime
from agentrl.sandbox.supervisor.reactor import Callback, Reactor, Timer


class Clockwork(Reactor):
    """A reactor whose time is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.timers: list[Timer] = []
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def call_later(self, delay_s: float, callback: Callback) -> Timer:
        self.timers.append(Timer(self.now + delay_s, callback))
        return self.timers[-1]

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for timer in [timer for timer in self.timers if timer.when <= self.now]:
            self.timers.remove(timer)
            if timer.callback is not None:
                timer.callback()


@pytest.fixture
def clockwork(monkeypatch: pytest.MonkeyPatch) -> Clockwork:
    return Clockwork(monkeypatch)


def test_it_is_over_once(clockwork: Clockwork) -> None:
    over: list[float] = []
    Lifetime(clockwork, 10.0, lambda: over.append(clockwork.now))
    clockwork.advance(9.9)
    assert over == []
    clockwork.advance(50.0)
    assert len(over) == 1


def test_it_counts_from_the_hand_out(clockwork: Clockwork) -> None:
    over: list[float] = []
    lifetime = Lifetime(clockwork, 10.0, lambda: over.append(clockwork.now))
    clockwork.advance(9.0)
    lifetime.restart()
    clockwork.advance(9.0)
    assert over == []
    clockwork.advance(1.0)
    assert len(over) == 1


def test_it_stands_still_while_frozen(clockwork: Clockwork) -> None:
    over: list[float] = []
    lifetime = Lifetime(clockwork, 10.0, lambda: over.append(clockwork.now))
    clockwork.advance(4.0)
    lifetime.stand_still()
    lifetime.stand_still()
    clockwork.advance(1000.0)
    lifetime.run()
    lifetime.run()
    clockwork.advance(5.9)
    assert over == []
    clockwork.advance(0.1)
    assert len(over) == 1


def test_it_can_be_ended(clockwork: Clockwork) -> None:
    over: list[float] = []
    lifetime = Lifetime(clockwork, 10.0, lambda: over.append(clockwork.now))
    lifetime.end()
    lifetime.end()
    clockwork.advance(100.0)
    assert over == []
