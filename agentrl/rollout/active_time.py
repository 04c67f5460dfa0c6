"""Time that counts for an agent: it stands still while generation is suspended for training or publication."""

from __future__ import annotations


class ActiveTime:
    """A stopwatch that can be paused, with the time passed in. Pausing or resuming twice changes nothing."""

    def __init__(self) -> None:
        self._paused_at: float | None = None
        self._paused_total = 0.0

    @property
    def paused(self) -> bool:
        return self._paused_at is not None

    def pause(self, now: float) -> None:
        if self._paused_at is None:
            self._paused_at = now

    def resume(self, now: float) -> None:
        if self._paused_at is not None:
            self._paused_total += now - self._paused_at
            self._paused_at = None

    def read(self, now: float) -> float:
        """Active seconds on an arbitrary origin; differences are active durations."""
        return (self._paused_at if self._paused_at is not None else now) - self._paused_total
