"""How many episodes may act at once, so that their contexts fit the engines' KV cache. Pure.

More in flight than fits makes engines evict and re-prefill; fewer leaves them idle.
"""

from __future__ import annotations

from agentrl.config.schema import JobConfig


def max_live_episodes(config: JobConfig) -> int:
    """Episodes that may act at once: as scheduled, and each in a sandbox of its own."""
    return min(config.schedule.max_live_episodes, config.sandbox.max_sandboxes)


def room(*, num_live: int, expected_tokens: float, capacity_tokens: int, share: float, limit: int) -> int:
    """How many further episodes may start now.

    Each live episode is charged `expected_tokens`, the mean final length of ended episodes, against `share` of the KV
    capacity. One episode may always be live, or nothing would ever end; none while no engine is up.
    """
    if capacity_tokens == 0:
        return 0
    fitting = max(int(capacity_tokens * share / max(expected_tokens, 1.0)), 1)
    return max(min(limit, fitting) - num_live, 0)


class ExpectedTokens:
    """Mean final length of episodes, shrunk towards a prior while few have ended."""

    def __init__(self, prior_tokens: float, *, prior_weight: float = 8.0) -> None:
        self._total = prior_tokens * prior_weight
        self._weight = prior_weight

    def add(self, num_tokens: int) -> None:
        self._total += num_tokens
        self._weight += 1

    @property
    def mean(self) -> float:
        return self._total / self._weight
