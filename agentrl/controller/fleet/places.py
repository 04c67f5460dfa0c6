"""Which engine each live episode samples on, and whose contexts the engines' KV caches have room for. Pure.

An episode has a place on an engine from its first turn on, and its context is kept there between turns. With more live
contexts than fit, each turn would evict one that is needed soon; so an episode without a place waits until there is
room: when an episode ends, an engine comes, or a place is only kept for a context whose episode has been in a tool for
`keep_s`. That one gives its place up, and is prefilled again when its tool is done.

Invariant: contexts placed on an engine fit `kv_share` of its capacity when they are placed, but for a first one.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.controller.fleet.routing import Load, Routing


@dataclass
class _Place:
    engine: str
    num_tokens: int
    """Of the context that was last known to be there."""
    idle_since: float | None = None
    """When its episode's tool began; None while it samples."""


class Places:
    """Episodes on the engines in service."""

    def __init__(self, *, kv_share: float, keep_s: float = 0.0, routing: Routing | None = None) -> None:
        """`kv_share`: of an engine's KV capacity, which placed contexts may fill. `keep_s`: see the module."""
        self._kv_share = kv_share
        self._keep_s = keep_s
        self._routing = routing or Routing()
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

    def remove(self, engine: str) -> None:
        """It serves no more: its episodes need new places. Idempotent."""
        if self._capacity_tokens.pop(engine, None) is not None:
            self._places = {episode: place for episode, place in self._places.items() if place.engine != engine}

    def flushed(self) -> None:
        """The caches hold nothing any more, so nobody is better off where it was."""
        self._places = {}

    def has(self, episode: str) -> bool:
        return episode in self._places

    def place(self, episode: str, num_tokens: int, now: float) -> str | None:
        """The engine for a turn with a context that long; None if none has room, or none is in service."""
        place = self._places.get(episode)
        if place is None:
            place = self._find(episode, num_tokens, now)
            if place is None:
                return None
            self._places[episode] = place
        place.num_tokens, place.idle_since = num_tokens, None
        return place.engine

    def idle(self, episode: str, num_tokens: int, now: float) -> None:
        """A turn is sampled; the context is that long now, and is kept."""
        if place := self._places.get(episode):
            place.num_tokens, place.idle_since = num_tokens, now

    def forget(self, episode: str) -> None:
        """The episode is over."""
        self._places.pop(episode, None)

    def next_room(self, now: float) -> float | None:
        """When the next place can be given up; None if none will be by time alone."""
        ends = [p.idle_since + self._keep_s for p in self._places.values() if p.idle_since is not None]
        return min((end for end in ends if end > now), default=None)

    def _find(self, episode: str, num_tokens: int, now: float) -> _Place | None:
        """Room as it is; else what has been idle for long gives way, the longest idle first."""
        free = self._free(self._places)
        if engine := self._choose(episode, num_tokens, free):
            return _Place(engine, num_tokens)
        expired = sorted(
            (place.idle_since, other)
            for other, place in self._places.items()
            if place.idle_since is not None and place.idle_since + self._keep_s <= now
        )
        given_up: dict[str, list[str]] = {engine: [] for engine in free}
        for _, other in expired:
            place = self._places[other]
            free[place.engine] += place.num_tokens
            given_up[place.engine].append(other)
            if engine := self._choose(episode, num_tokens, {place.engine: free[place.engine]}):
                for gone in given_up[engine]:
                    del self._places[gone]
                return _Place(engine, num_tokens)
        return None

    def _free(self, places: dict[str, _Place]) -> dict[str, float]:
        """Tokens that still fit, by engine; anything fits on an engine that has nothing."""
        free = {engine: self._kv_share * capacity for engine, capacity in self._capacity_tokens.items()}
        for place in places.values():
            free[place.engine] -= place.num_tokens
        return free

    def _choose(self, episode: str, num_tokens: int, free: dict[str, float]) -> str | None:
        used = dict.fromkeys(free, 0)
        for place in self._places.values():
            if place.engine in used:
                used[place.engine] += 1
        loads = [
            Load(engine=engine, num_episodes=used[engine], free_tokens=tokens)
            for engine, tokens in free.items()
            if tokens >= num_tokens or used[engine] == 0
        ]
        return self._routing.choose(episode, loads)


class Pool(Places):
    """The engines behind a router, which chooses among them: they count as one with the capacity of all.

    An episode keeps its place when an engine leaves: only the router knows whether its context was there.
    """

    _NAME = "router"

    def remove(self, engine: str) -> None:
        self._capacity_tokens.pop(engine, None)
        if not self._capacity_tokens:
            self._places = {}

    def _free(self, places: dict[str, _Place]) -> dict[str, float]:
        if not self._capacity_tokens:
            return {}
        return {self._NAME: self._kv_share * self.capacity_tokens - sum(place.num_tokens for place in places.values())}
