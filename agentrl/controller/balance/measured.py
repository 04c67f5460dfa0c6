"""What the balance knows of the run: rates, sizes and costs, as means over the last few steps. Pure.

Sampled tokens are what a batch is made of: over many steps as many are sampled as go into batches, so the tokens of the
mean interval between two batches, less those sampled since the last one, are what is missing from the next. What is
carried over grows in the first steps and ends with a straggler in others: predictions are corrected by what the last
ones came to.
"""

from __future__ import annotations

import math
from collections import deque
from enum import Enum

LAST = 4
"""Steps that a mean is taken over: enough to even out a step's luck, few enough to follow a drift."""


MAX_CORRECTION = 4.0
"""Of a prediction, either way."""


class Mode(Enum):
    """Who generates."""

    ALL = "all"
    DEDICATED = "dedicated"
    """The swing engines are with the trainer."""
    NOBODY = "nobody"
    """A publication, a switch, or no engine left."""


class Mean:
    """Of the last few values; None before the first."""

    def __init__(self, size: int = LAST) -> None:
        self._values: deque[float] = deque(maxlen=size)

    def add(self, value: float) -> None:
        self._values.append(value)

    @property
    def value(self) -> float | None:
        return sum(self._values) / len(self._values) if self._values else None


class Measured:
    """`tokens` are all those that the engines ever sampled, on the caller's count."""

    def __init__(self, now: float, tokens: int) -> None:
        self.there_s = Mean()
        self.back_s = Mean()
        self.train_s = Mean(1)
        self._batch_tokens = Mean()
        self._batch_began = tokens
        self._correction = 1.0
        self._windows: dict[Mode, deque[tuple[float, int]]] = {mode: deque(maxlen=LAST) for mode in Mode}
        self._mode = Mode.NOBODY
        self._began = now
        self._began_tokens = tokens

    def change(self, mode: Mode, now: float, tokens: int) -> None:
        """From now on it generates who `mode` says."""
        if now > self._began:
            self._windows[self._mode].append((now - self._began, tokens - self._began_tokens))
        self._mode, self._began, self._began_tokens = mode, now, tokens

    def batch(self, tokens: int) -> None:
        """A batch is complete; one that was complete before this controller started says nothing."""
        if tokens > self._batch_began:
            self._batch_tokens.add(tokens - self._batch_began)
        self._batch_began = tokens

    def correct(self, predicted_s: float, realised_s: float) -> None:
        """What a prediction came to: later ones are corrected by half of its error, on a scale of factors."""
        if predicted_s > 0 and realised_s > 0:
            corrected = self._correction * math.sqrt(realised_s / predicted_s)
            self._correction = min(max(corrected, 1 / MAX_CORRECTION), MAX_CORRECTION)

    def rate(self, mode: Mode, now: float, tokens: int) -> float | None:
        """Tokens a second while `mode`; the present window counts where it is as long as the mean one.

        None as long as there was not one, as in a resumed run that trains before its engines are up.
        """
        windows = list(self._windows[mode])
        present_s = now - self._began
        if mode is self._mode and present_s * max(len(windows), 1) >= sum(seconds for seconds, _ in windows):
            windows.append((present_s, tokens - self._began_tokens))
        seconds, count = sum(seconds for seconds, _ in windows), sum(count for _, count in windows)
        return count / seconds if seconds > 0 and count > 0 else None

    def remaining(self, tokens: int, *, missing: float) -> float | None:
        """Tokens until the next batch is complete. `missing`: share of its groups that are not ready yet.

        When more than a mean batch was sampled already, what is left is not known: a tenth of what the missing groups
        would be made of.
        """
        mean = self._batch_tokens.value
        if mean is None:
            return None
        return self._correction * max(mean - (tokens - self._batch_began), 0.1 * missing * mean)
