"""Complete groups waiting for the trainer, and which of them make the next batch. Pure: no clock, no I/O.

Invariant: a group that entered leaves exactly once, in a batch or dropped with a reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.controller.scheduling.groups import ClosedGroup

BARREN_ALLOWANCES = 8
"""Refill allowances used up without one group that has reward variance: then there is nothing to learn."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Groups for one step."""

    groups: tuple[ClosedGroup, ...]
    """The batch, oldest first."""
    consumed: tuple[ClosedGroup, ...]
    """Groups without reward variance that were used up since the last batch: no gradient, but sampled all the same."""

    @property
    def reward_sampled(self) -> float:
        """Mean reward of everything that this step used up, trained or not: the honest curve."""
        rewards = [r for g in (*self.groups, *self.consumed) for r in g.rewards]
        return sum(rewards) / len(rewards)


class ReadyPool:
    """Groups by launch order. Holds at most what the scheduler's window lets be open."""

    def __init__(
        self, *, groups_per_step: int, max_policy_lag: int, drop_zero_variance: bool, max_refill: float
    ) -> None:
        self._groups_per_step = groups_per_step
        self._max_policy_lag = max_policy_lag
        self._drop_zero_variance = drop_zero_variance
        self._max_consumed = int(groups_per_step * max_refill)
        self._ready: dict[int, ClosedGroup] = {}
        self._consumed: list[ClosedGroup] = []

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def oldest_version(self) -> int | None:
        """Smallest policy version of any sampled token in the ready groups."""
        return min((group.oldest_version for group in self._ready.values()), default=None)

    @property
    def num_consumed(self) -> int:
        """Groups dropped for lack of variance since the last batch."""
        return len(self._consumed)

    def add(self, group: ClosedGroup) -> str | None:
        """Take a complete group. Returns the reason if it is dropped at once."""
        if self._drop_zero_variance and len(set(group.rewards)) <= 1:
            self._consumed.append(group)
            return "zero_variance"
        self._ready[group.seq] = group
        return None

    def restore(self, group: ClosedGroup) -> None:
        """After a restart: a group that was ready before."""
        self._ready[group.seq] = group

    def restore_consumed(self, group: ClosedGroup) -> None:
        """After a restart: a dropped group that no step was charged with yet."""
        self._consumed.append(group)

    def drop_stale(self, step: int) -> list[ClosedGroup]:
        """Remove the groups that are too old for the batch of `step`: a token's lag is (step - 1) - its version."""
        stale = [g for g in self._ready.values() if step - 1 - g.oldest_version > self._max_policy_lag]
        for group in stale:
            del self._ready[group.seq]
        return stale

    @property
    def complete(self) -> bool:
        """Whether a batch can be taken: enough groups, or at least one once refilling has used up its allowance."""
        if len(self._ready) >= self._groups_per_step:
            return True
        return len(self._ready) > 0 and len(self._ready) + len(self._consumed) >= self._max_consumed

    @property
    def last_of_batch(self) -> int:
        """Launch number of the youngest group that `take` would take; only while `complete`."""
        return sorted(self._ready)[: self._groups_per_step][-1]

    def barren(self) -> str | None:
        """Why no batch will ever come, or None."""
        if self._ready or len(self._consumed) < BARREN_ALLOWANCES * self._max_consumed:
            return None
        rewards = [reward for group in self._consumed for reward in group.rewards]
        mean = sum(rewards) / len(rewards)
        return f"{len(self._consumed)} groups in a row had equal rewards (mean {mean:.2f})"

    def take(self) -> Selection:
        """The oldest groups, up to a batch. Call `drop_stale` first; only while `complete`."""
        assert self.complete
        chosen = sorted(self._ready)[: self._groups_per_step]
        selection = Selection(groups=tuple(self._ready.pop(seq) for seq in chosen), consumed=tuple(self._consumed))
        self._consumed = []
        return selection
