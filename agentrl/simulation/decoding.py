"""How far an engine's decoding has come: steps as a closed function of time, while who runs does not change."""

from __future__ import annotations

import math

from agentrl.simulation.config import EngineLaw


class DecodeClock:
    """Counts decoding steps; each gives every running request one token.

    With R running requests and C tokens in their contexts a step takes a + c * C seconds, and C grows by R a step. So
    k steps take (a + c * C) * k + c * R * k^2 / 2 seconds, divided by the speed's share while a prefill goes on.
    """

    def __init__(self, law: EngineLaw, now: float) -> None:
        self._law = law
        self._now = now
        self.steps = 0.0
        self.num_running = 0
        self.prefilling = False
        self._contexts = 0.0
        """Sum over running requests of the context with which they joined minus the step at which they did."""

    @property
    def context_tokens(self) -> float:
        """Tokens in the contexts of the running requests."""
        return self._contexts + self.num_running * self.steps

    def join(self, context_tokens: int) -> float:
        """A request starts to decode. Returns the step at which it does."""
        self.num_running += 1
        self._contexts += context_tokens - self.steps
        return self.steps

    def leave(self, context_tokens: int, joined: float) -> None:
        """The request that joined with that context at that step runs no more."""
        self.num_running -= 1
        self._contexts -= context_tokens - joined
        if not self.num_running:
            self._contexts = 0.0

    def advance(self, now: float) -> float:
        """Move to `now`. Returns the seconds since the last time."""
        passed_s, self._now = now - self._now, now
        if self.num_running and passed_s > 0:
            self.steps += self._steps_in(passed_s * self._speed)
        return passed_s

    def when(self, steps: float) -> float:
        """The time at which `steps` are reached if nothing changes; infinity while nothing runs."""
        if not self.num_running:
            return math.inf
        ahead = max(steps - self.steps, 0.0)
        return self._now + (self._step_s * ahead + self._growth * ahead * ahead / 2) / self._speed

    def _steps_in(self, seconds: float) -> float:
        """The positive root of the quadratic, in the form that stays exact when the growth is nil."""
        a = self._step_s
        return 2 * seconds / (a + math.sqrt(a * a + 2 * self._growth * seconds))

    @property
    def _speed(self) -> float:
        return self._law.decode_share_while_prefilling if self.prefilling else 1.0

    @property
    def _step_s(self) -> float:
        law = self._law
        return (
            law.step_s + law.step_per_running_s * self.num_running + law.step_per_context_token_s * self.context_tokens
        )

    @property
    def _growth(self) -> float:
        return self._law.step_per_context_token_s * self.num_running
