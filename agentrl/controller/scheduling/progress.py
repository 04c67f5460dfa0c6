"""How far every live episode has come, and how far it is expected to go. Pure: told of turns, with their time."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.controller.scheduling.forecast import Forecast


@dataclass(kw_only=True)
class _Live:
    task: str
    num_tokens: int = 0
    num_turns: int = 0


@dataclass(frozen=True, kw_only=True)
class Reached:
    """Where an episode was when it was last heard of."""

    num_turns: int
    num_tokens: int


class Progress:
    """All live episodes of a run."""

    def __init__(self, *, max_episode_tokens: int) -> None:
        self._forecast = Forecast(max_episode_tokens)
        self._live: dict[str, _Live] = {}
        self._tokens = 0
        self._turns = 0
        self._turns_s = 0.0

    def remember(self, task: str, num_tokens: int) -> None:
        """An episode of an earlier life of the controller that ended by itself."""
        self._forecast.grow(task, 0, num_tokens)
        self._forecast.end(task, num_tokens)

    def start(self, episode: str, task: str) -> None:
        self._live[episode] = _Live(task=task)

    def turn(self, episode: str, *, num_tokens: int, seconds: float) -> None:
        """A turn is over that added so many tokens in so many active seconds. Others than those that started are none
        of its business: evaluations are not scheduled."""
        live = self._live.get(episode)
        if live is None:
            return
        self._forecast.grow(live.task, live.num_tokens, live.num_tokens + num_tokens)
        live.num_tokens += num_tokens
        live.num_turns += 1
        self._tokens += num_tokens
        self._turns += 1
        self._turns_s += seconds

    def end(self, episode: str, *, by_itself: bool) -> Reached:
        """It is over. `by_itself`: it was neither lost nor cancelled."""
        live = self._live.pop(episode)
        if by_itself:
            self._forecast.end(live.task, live.num_tokens)
        return Reached(num_turns=live.num_turns, num_tokens=live.num_tokens)

    # --- what is expected

    def new(self, task: str | None = None) -> float:
        """Tokens that an episode of a task is expected to become, or one of a task never seen."""
        return self._forecast.remaining(task or "", 0)

    def totals(self) -> tuple[float, float]:
        """(sum of the contexts, sum of their expected growth) of the live episodes, in tokens."""
        used = sum(live.num_tokens for live in self._live.values())
        remaining = sum(self._forecast.remaining(live.task, live.num_tokens) for live in self._live.values())
        return used, remaining

    def remaining_s(self, episode: str) -> float | None:
        """Expected active seconds until an episode ends; None before any turn was seen."""
        if self._tokens == 0:
            return None
        live = self._live[episode]
        return self._forecast.remaining(live.task, live.num_tokens) * self._turns_s / self._tokens
