"""The circuit breaker: when too many recent episodes ended without a usable verdict, going on would train on luck."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from agentrl.rollout.verdict import Cause, Verdict

WINDOW = 64
"""Ended episodes that are looked at; nothing is said before there are as many."""


@dataclass(frozen=True)
class Tripped:
    """Too many episodes ended with `verdict`; `problem` says how many, and of which causes."""

    verdict: Verdict
    problem: str


class Breaker:
    """Shares of verdicts among the last episodes."""

    def __init__(self, *, infra_share_limit: float, uncertain_share_limit: float) -> None:
        self._limits = {Verdict.INFRA_FAILURE: infra_share_limit, Verdict.UNCERTAIN: uncertain_share_limit}
        self._recent: deque[tuple[Verdict, Cause]] = deque(maxlen=WINDOW)

    def add(self, verdict: Verdict, cause: Cause) -> None:
        self._recent.append((verdict, cause))

    def share(self, verdict: Verdict) -> float:
        return sum(v is verdict for v, _ in self._recent) / len(self._recent) if self._recent else 0.0

    def tripped(self) -> Tripped | None:
        """Why the run must pause, or None."""
        if len(self._recent) < WINDOW:
            return None
        for verdict, limit in self._limits.items():
            if self.share(verdict) > limit:
                causes = Counter(cause for v, cause in self._recent if v is verdict)
                listed = ", ".join(f"{cause} {count}" for cause, count in causes.most_common())
                share = f"{self.share(verdict):.0%} of the last {WINDOW} episodes are {verdict}"
                return Tripped(verdict, f"{share} (limit {limit:.0%}): {listed}")
        return None
