"""What every GPU's time goes to. Pure: states in, seconds out, the time passed in.

A lane is one engine's GPU, or the trainer's where it has GPUs of its own; a swing engine and the trainer share the
engine's lane. Every lane is in exactly one use at any moment, so its uses add up to the whole time: times are whole
microseconds, and the sums exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from agentrl.controller.fleet.state import EngineState

TRAINER = "trainer"
"""Lane of a trainer with GPUs of its own."""


class Use(StrEnum):
    """What a lane's time goes to; the words of the reports."""

    GENERATE = "generate"
    """The engine has at least one request."""
    TRAIN = "train"
    """The trainer has a batch and has not reported it yet."""
    WAIT_ENVIRONMENTS = "wait_environments"
    """The engine has no request: the episodes are in their sandboxes, or these are being started."""
    WAIT_STRAGGLERS = "wait_stragglers"
    """The same, and nothing more can be started for the batch: it waits for its last episodes."""
    PUBLISH = "publish"
    """New weights are being loaded, or waited for by the others."""
    SWITCH = "switch"
    """The engine is on its way to the trainer, or back."""
    IDLE = "idle"
    """Nothing to do: no episode is live, or the trainer has no batch."""
    DOWN = "down"
    """The engine is being started, or lost."""


USEFUL = frozenset({Use.GENERATE, Use.TRAIN})
"""The rest is lost."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What is known of the run at one time."""

    engines: Mapping[str, EngineState]
    lent: bool
    """The swing engines' GPUs are the trainer's."""
    swing: frozenset[str]
    training: bool
    """The trainer has a batch."""
    live: bool
    """Some episode is under way."""
    may_launch: bool
    """More could be started for the batch that is being collected."""


def uses(moment: Moment) -> dict[str, Use]:
    """What every lane is in use for."""
    lanes = {name: _engine_use(name, state, moment) for name, state in moment.engines.items()}
    if not moment.swing:
        lanes[TRAINER] = Use.TRAIN if moment.training else Use.IDLE
    return lanes


def _engine_use(name: str, state: EngineState, moment: Moment) -> Use:
    if state is EngineState.SWITCHING:
        return Use.SWITCH
    if moment.lent and name in moment.swing:
        return Use.TRAIN if moment.training else Use.IDLE
    match state:
        case EngineState.BUSY:
            return Use.GENERATE
        case EngineState.HELD:
            return Use.PUBLISH
        case EngineState.FREE if moment.may_launch:
            return Use.WAIT_ENVIRONMENTS
        case EngineState.FREE if moment.live:
            return Use.WAIT_STRAGGLERS
        case EngineState.FREE:
            return Use.IDLE
        case _:
            return Use.DOWN


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Time that a lane spent on one use."""

    lane: str
    use: Use
    began_s: float
    """When it was first in that use; on the clock of the `now`s."""
    spent_us: int


class GpuTime:
    """Adds up. Times given to it never go back."""

    def __init__(self, now: float) -> None:
        self._uses: dict[str, Use] = {}
        self._since_us = _microseconds(now)
        self._spent_us: defaultdict[tuple[str, Use], int] = defaultdict(int)
        self._began_s: dict[tuple[str, Use], float] = {}

    def set(self, current: Mapping[str, Use], now: float) -> None:
        """From now on lanes are in these uses. The lanes are always the same."""
        self._advance(now)
        self._uses = dict(current)

    def take(self, now: float) -> list[Spent]:
        """What was spent since the last take: for every lane the same total."""
        self._advance(now)
        spent = [
            Spent(lane=lane, use=use, began_s=self._began_s[lane, use], spent_us=time_us)
            for (lane, use), time_us in self._spent_us.items()
            if time_us
        ]
        self._spent_us.clear()
        self._began_s.clear()
        return spent

    def _advance(self, now: float) -> None:
        now_us = _microseconds(now)
        for lane, use in self._uses.items():
            self._began_s.setdefault((lane, use), self._since_us / 1e6)
            self._spent_us[lane, use] += now_us - self._since_us
        self._since_us = now_us


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)
