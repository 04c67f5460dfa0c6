"""How many episodes may act at once, so that their contexts fit the engines' KV cache. Pure.

More in flight than fits makes episodes wait for room and engines prefill again what they had; fewer leaves them idle.
"""

from __future__ import annotations

import math

from agentrl.config.schema import JobConfig

LOWEST_FACTOR, HIGHEST_FACTOR = 0.25, 4.0
"""Range of what experience can do to the prediction."""
INCREASE = 0.05
DECREASE = 0.9
FEW_WAIT, MANY_WAIT = 0.02, 0.10
"""Shares of the live episodes that wait for room. Between them nothing changes: that is the hysteresis."""
LOOKS = 3
"""The same must be seen so often in a row: a burst after a publication is no reason to act."""


def max_live_episodes(config: JobConfig) -> int:
    """Episodes that may act at once: as scheduled, and each in a sandbox of its own."""
    return min(config.schedule.max_live_episodes, config.sandbox.max_sandboxes)


def eval_episodes(config: JobConfig) -> int:
    """Episodes of an evaluation that may act at once: in the middle of a run the training ones keep their sandboxes."""
    if not config.schedule.eval_every:
        return max_live_episodes(config)
    return min(config.schedule.max_live_episodes, config.sandbox.max_sandboxes - config.schedule.max_live_episodes)


def expected_peak(used: float, remaining: float) -> float:
    """The most KV tokens that live episodes are expected to hold together, if none is added.

    `used`: sum of their contexts; `remaining`: sum of what each is expected to grow by. Not the sum of both: while
    some grow, others end. Where n episodes grow at one pace and end at a constant rate, with mean remaining growth m
    and mean context u, together they hold n (u + x) exp(-x / m) once each survivor has grown by x. That peaks at
    x = m - u, at n m exp(u / m - 1), or now if u >= m.
    """
    if used >= remaining:
        return used
    return remaining * math.exp(used / remaining - 1)


def room(
    *, num_live: int, used: float, remaining: float, new: float, budget_tokens: float, limit: int, floor: int = 1
) -> int:
    """How many further episodes may start now.

    `used` and `remaining` are sums over the live episodes, `new` is what one that starts now is expected to become, all
    in tokens. At least `floor` may always be live, or nothing would ever end; none while there is no budget.
    """
    if budget_tokens <= 0:
        return 0
    fitting = 0
    while num_live + fitting < limit:
        fits = expected_peak(used, remaining + (fitting + 1) * new) <= budget_tokens
        if not fits and num_live + fitting >= floor:
            break
        fitting += 1
    return fitting


class LoadFactor:
    """Corrects the prediction by what the engines show: additive increase, multiplicative decrease.

    Never leaves its range, so it never collapses to zero; moves at most once in `LOOKS` looks, not at all between
    `FEW_WAIT` and `MANY_WAIT`, and not again before episodes have ended or started accordingly, so it does not
    oscillate.
    """

    def __init__(self) -> None:
        self.value = 1.0
        self._in_a_row = 0

    def look(self, *, num_live: int, num_waiting: int, fill: float, limited: bool) -> bool:
        """Take a look at the load; call it at equal intervals. Returns whether the factor changed.

        `num_waiting`: live episodes that wait for room in a KV cache. `fill`: what they are all expected to hold, in
        shares of the budget before this factor; where that is more than the factor allows, a smaller one would change
        nothing yet. `limited`: it keeps episodes from starting; only then a greater one would change anything.
        """
        share = num_waiting / max(num_live, 1)
        step = -int(fill <= self.value) if share > MANY_WAIT else int(share <= FEW_WAIT and limited)
        if step == 0:
            self._in_a_row = 0
            return False
        self._in_a_row = self._in_a_row + step if self._in_a_row * step > 0 else step
        if abs(self._in_a_row) < LOOKS:
            return False
        self._in_a_row = 0
        before = self.value
        changed = before + INCREASE if step > 0 else before * DECREASE
        self.value = min(max(changed, LOWEST_FACTOR), HIGHEST_FACTOR)
        return self.value != before
