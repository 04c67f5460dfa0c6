"""Which engine each live episode samples on, and whether a context still fits beside those already there. Pure.

Room is looked at only when an episode needs a new place while engines are lent: then more contexts are alive than the
others hold, and one too many would make them evict and prefill again what they have.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.controller.routing import Routing


@dataclass
class _Place:
    engine: str
    num_tokens: int
    """Of the context that was last sent there."""


class Places:
    """Episodes on the engines in service."""

    def __init__(self, *, kv_share: float) -> None:
        """`kv_share`: of the engines' KV capacity, which placed contexts may fill."""
        self._kv_share = kv_share
        self._routing = Routing()
        self._capacity_tokens: dict[str, int] = {}
        self._places: dict[str, _Place] = {}

    def __contains__(self, engine: str) -> bool:
        return engine in self._capacity_tokens

    def __len__(self) -> int:
        """Engines in service."""
        return len(self._capacity_tokens)

    @property
    def engines(self) -> tuple[str, ...]:
        return tuple(self._capacity_tokens)

    @property
    def capacity_tokens(self) -> int:
        """KV capacity of the engines in service."""
        return sum(self._capacity_tokens.values())

    def add(self, engine: str, capacity_tokens: int) -> None:
        self._capacity_tokens[engine] = capacity_tokens
        self._routing.add(engine)

    def remove(self, engine: str) -> None:
        """It serves no more: its episodes need new places. Idempotent."""
        if self._capacity_tokens.pop(engine, None) is None:
            return
        self._routing.remove(engine)
        self._places = {episode: place for episode, place in self._places.items() if place.engine != engine}

    def has(self, episode: str) -> bool:
        return episode in self._places

    def fits(self, num_tokens: int) -> bool:
        """Whether another context of that length has room; where nothing is, anything has."""
        if not self._places:
            return bool(self._capacity_tokens)
        taken = sum(place.num_tokens for place in self._places.values())
        return taken + num_tokens <= self._kv_share * self.capacity_tokens

    def place(self, episode: str, num_tokens: int) -> str | None:
        """The episode's engine, from now on; None if none is in service."""
        engine = self._routing.route(episode)
        if engine is not None:
            self._places[episode] = _Place(engine, num_tokens)
        return engine

    def forget(self, episode: str) -> None:
        """The episode is over."""
        self._routing.forget(episode)
        self._places.pop(episode, None)
