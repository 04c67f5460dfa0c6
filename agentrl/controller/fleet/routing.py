"""Which of the engines with room an episode goes to. Pure, and the one place to change it.

The engine with the most free KV, then the fewest episodes: contexts differ tenfold in length, so engines with equally
many episodes are not equally full, and the fullest one evicts. An episode then stays where its context is (`places`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Load:
    """An engine that could take the episode."""

    engine: str
    num_episodes: int
    free_tokens: float


class Routing:
    """Chooses; a subclass may choose otherwise. A router between controller and engines gets `key` instead."""

    def choose(self, episode: str, loads: Iterable[Load]) -> str | None:
        """Name of the engine for an episode that has no place; None if there is none to choose from."""
        best = min(loads, key=lambda load: (-load.free_tokens, load.num_episodes, load.engine), default=None)
        return best.engine if best else None

    def key(self, episode: str) -> str:
        """What an external router keeps together: all turns of an episode."""
        return episode
