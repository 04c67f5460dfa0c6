"""How often to ask, and when to ask again: pure, the time and the randomness passed in."""

from __future__ import annotations

from agentrl.kubernetes.errors import KubernetesError, Throttled

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 10.0


class RateLimit:
    """A bucket of tokens: `per_s` requests a second in the long run, `burst` at once."""

    def __init__(self, *, per_s: float, burst: int) -> None:
        self._per_s = per_s
        self._burst = burst
        self._free_at = float("-inf")
        """When the bucket is full, if nothing is taken any more."""

    def take(self, now: float) -> float:
        """Take one; returns the seconds to wait until it may be used. First come, first served."""
        earliest = now - (self._burst - 1) / self._per_s
        self._free_at = max(self._free_at, earliest)
        at = self._free_at
        self._free_at += 1 / self._per_s
        return max(0.0, at - now)


def pause_s(attempt: int, entropy: float) -> float:
    """How long to wait after failure number `attempt` (from 0): doubling, and spread over its half so that many that
    failed together do not come back together. `entropy` is in [0, 1)."""
    longest: float = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(attempt, 16))
    return longest * (0.5 + entropy / 2)


def retry_after_s(error: KubernetesError, attempt: int, entropy: float) -> float | None:
    """How long to wait before the same request is made again; None: it would fail again."""
    if not error.transient:
        return None
    pause = pause_s(attempt, entropy)
    if isinstance(error, Throttled) and error.retry_after_s is not None:
        return error.retry_after_s + pause / 4
    return pause
