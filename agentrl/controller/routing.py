"""Which engine an episode goes to: the one with the fewest live episodes, and then always the same one. Pure.

Staying keeps the prefix cache useful; an episode moves only when its engine leaves.
"""

from __future__ import annotations


class Routing:
    """Live episodes by engine."""

    def __init__(self) -> None:
        self._engines: dict[str, set[str]] = {}
        self._home: dict[str, str] = {}

    def add(self, engine: str) -> None:
        self._engines.setdefault(engine, set())

    def remove(self, engine: str) -> None:
        """The engine died or drains: its episodes find a new one at their next turn."""
        for episode in self._engines.pop(engine, set()):
            del self._home[episode]

    def route(self, episode: str) -> str | None:
        """Name of the episode's engine; None while there is no engine."""
        if episode in self._home:
            return self._home[episode]
        if not self._engines:
            return None
        engine = min(self._engines, key=lambda name: (len(self._engines[name]), name))
        self._engines[engine].add(episode)
        self._home[episode] = engine
        return engine

    def forget(self, episode: str) -> None:
        """The episode is over."""
        if engine := self._home.pop(episode, None):
            self._engines[engine].discard(episode)
