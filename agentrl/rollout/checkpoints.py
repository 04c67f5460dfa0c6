"""Where an episode can go on from: its tokens and its sandbox's files after a turn, kept in case the machinery fails.

An attempt that infrastructure ended leaves its last checkpoint here; the next attempt at the same member takes it and
goes on with the same tokens and the same state instead of from nothing. Background processes are not in it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.rollout.conversation import Conversation
from agentrl.rollout.edges import TurnRecord
from agentrl.sandbox.provider import Snapshot

MOST_KEPT = 64
"""Checkpoints without an attempt. A member that is never tried again leaves one behind; the oldest goes first."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """An episode after a turn."""

    turns: Sequence[TurnRecord]
    """Those that the next attempt's record begins with; none of them where it begins in another episode."""
    num_turns: int
    conversation: Conversation
    """A copy: nothing is appended to it."""
    active_s: float
    """Active time used up."""
    snapshot: Snapshot
    session_state: bytes
    """What the agent's shell session knew; empty without one."""


class Checkpoints:
    """The last checkpoint of each member whose latest attempt infrastructure ended."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Checkpoint] = OrderedDict()

    def take(self, episode: str) -> Checkpoint | None:
        """That of the member whose attempt `episode` is. Its snapshot is the caller's to release."""
        return self._kept.pop(_member(episode), None)

    async def keep(self, episode: str, checkpoint: Checkpoint) -> None:
        """For the next attempt at the same member."""
        self._kept[_member(episode)] = checkpoint
        while len(self._kept) > MOST_KEPT:
            _, oldest = self._kept.popitem(last=False)
            await oldest.snapshot.release()


def _member(episode: str) -> str:
    """An episode's id without its attempt."""
    return episode.rpartition(".")[0]
