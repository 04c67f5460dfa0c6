"""What the controller would be without routing: for comparisons only."""

from __future__ import annotations

import itertools

from agentrl.controller.fleet.places import Places


class NoPlaces(Places):
    """Every turn goes to the next engine, whatever is there and wherever the context is."""

    def __init__(self) -> None:
        super().__init__(kv_share=1.0)
        self._turns = itertools.count()

    def has(self, episode: str) -> bool:
        return bool(self.engines)

    def place(self, episode: str, num_tokens: int, now: float) -> str | None:
        engines = self.engines
        return engines[next(self._turns) % len(engines)] if engines else None
