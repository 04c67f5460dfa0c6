"""The circuit breaker: when too many recent episodes ended without a usable verdict, going on would train on luck.

A machine that fails may recover: after too many infrastructure failures launching pauses, then a few episodes are
tried; if as many of these fail, it pauses for twice as long. A verifier that says nothing does not get better by
waiting. A state machine without clock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass

from agentrl.rollout.verdict import Cause, Verdict

WINDOW = 64
"""Ended episodes that are looked at; nothing is said before there are as many."""
TRIALS = 8
"""Episodes that are tried after a pause."""


@dataclass(frozen=True)
class Tripped:
    """Too many episodes ended with `verdict`; `problem` says how many, and of which causes."""

    verdict: Verdict
    problem: str


@dataclass(frozen=True)
class Pause:
    """Launching stands still until `until`, by the caller's clock."""

    until: float
    seconds: float
    problem: str


class Breaker:
    """Shares of verdicts among the last episodes. Times are by the caller's clock, in seconds."""

    def __init__(
        self, *, infra_share_limit: float, uncertain_share_limit: float, pause_s: float, max_pauses: int
    ) -> None:
        """`pause_s`: the first pause. `max_pauses`: those in a row, after which the run must pause as a whole."""
        self._infra_limit = infra_share_limit
        self._uncertain_limit = uncertain_share_limit
        self._pause_s = pause_s
        self._max_pauses = max_pauses
        self._recent: deque[tuple[Verdict, Cause]] = deque(maxlen=WINDOW)
        self._num_pauses = 0
        """In a row."""
        self._num_tried = 0
        self._trials: list[tuple[Verdict, Cause]] = []
        self._tripped: Tripped | None = None
        self.pause: Pause | None = None
        """The one that goes on, or whose trials go on."""

    def allowed(self, now: float) -> int | None:
        """How many episodes may be launched; None: any number."""
        if self.pause is None:
            return None
        return TRIALS - self._num_tried if now >= self.pause.until else 0

    def launched(self) -> None:
        """An episode was started."""
        self._num_tried += self.pause is not None

    def withdrawn(self, began: float) -> None:
        """One that was started at `began` was cancelled, and says nothing."""
        self._num_tried -= self._is_trial(began)

    def add(self, verdict: Verdict, cause: Cause, *, began: float, now: float) -> None:
        """One that was started at `began` has ended."""
        if self.pause is None:
            self._recent.append((verdict, cause))
            self._judge_recent(now)
        elif self._is_trial(began):
            self._trials.append((verdict, cause))
            if len(self._trials) == TRIALS:
                self._judge_trials(now)

    def share(self, verdict: Verdict) -> float:
        return _share(self._recent, verdict)

    def tripped(self) -> Tripped | None:
        """Why the run must pause, or None."""
        return self._tripped

    def _is_trial(self, began: float) -> bool:
        return self.pause is not None and began >= self.pause.until

    def _judge_recent(self, now: float) -> None:
        if len(self._recent) < WINDOW:
            return
        if self.share(Verdict.UNCERTAIN) > self._uncertain_limit:
            problem = _problem(self._recent, Verdict.UNCERTAIN, self._uncertain_limit)
            self._tripped = Tripped(Verdict.UNCERTAIN, problem)
        elif self.share(Verdict.INFRA_FAILURE) > self._infra_limit:
            self._stop(_problem(self._recent, Verdict.INFRA_FAILURE, self._infra_limit), now)
        else:
            self._num_pauses = 0

    def _judge_trials(self, now: float) -> None:
        if _share(self._trials, Verdict.INFRA_FAILURE) > self._infra_limit:
            self._stop(_problem(self._trials, Verdict.INFRA_FAILURE, self._infra_limit), now)
        else:
            self.pause = None
            self._recent.clear()

    def _stop(self, problem: str, now: float) -> None:
        if self._num_pauses == self._max_pauses:
            tried = f"; launching was paused {self._num_pauses} times before" if self._num_pauses else ""
            self._tripped = Tripped(Verdict.INFRA_FAILURE, problem + tried)
            return
        seconds = self._pause_s * 2**self._num_pauses
        self._num_pauses += 1
        self._num_tried = 0
        self._trials.clear()
        self.pause = Pause(now + seconds, seconds, problem)


def _share(ended: Collection[tuple[Verdict, Cause]], verdict: Verdict) -> float:
    return sum(v is verdict for v, _ in ended) / len(ended) if ended else 0.0


def _problem(ended: Collection[tuple[Verdict, Cause]], verdict: Verdict, limit: float) -> str:
    causes = Counter(cause for v, cause in ended if v is verdict)
    listed = ", ".join(f"{cause} {count}" for cause, count in causes.most_common())
    return f"{_share(ended, verdict):.0%} of the last {len(ended)} episodes are {verdict} (limit {limit:.0%}): {listed}"
