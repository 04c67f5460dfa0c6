"""Builds the token-exact record of an episode, append by append."""

from __future__ import annotations

import array
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from agentrl.inference.engine import Generation
from agentrl.wire import Segment, Trajectory


class TrajectoryBuilder:
    """Ids as the model saw them, with a loss mask, behaviour log-probs and policy versions of equal length.

    Nothing is ever changed or re-tokenised once it is appended.
    """

    def __init__(self, prompt: list[int]) -> None:
        self.ids: list[int] = []
        self._mask = bytearray()
        self._logprobs = array.array("f")
        self._versions = array.array("i")
        self._marked = 0
        self.append_context(prompt)

    def copy(self) -> TrajectoryBuilder:
        """The same record, to which appending changes nothing here."""
        made = TrajectoryBuilder([])
        made.ids, made._mask = self.ids.copy(), self._mask.copy()
        made._logprobs, made._versions, made._marked = self._logprobs[:], self._versions[:], self._marked
        return made

    def append_context(self, ids: list[int]) -> None:
        """Tokens that the policy did not sample: prompt, template, observation."""
        self.ids += ids
        self._mask += bytes(len(ids))
        self._logprobs.frombytes(bytes(self._logprobs.itemsize * len(ids)))
        self._versions += array.array("i", (-1,)) * len(ids)

    def append_sampled(self, generation: Generation) -> None:
        """Tokens that the policy sampled."""
        self.ids += generation.ids
        self._mask += b"\x01" * len(generation.ids)
        self._logprobs.extend(generation.logprobs)
        self._versions.extend(generation.versions)

    @property
    def num_sampled(self) -> int:
        return self._mask.count(1)

    def take_segment(self, sequence: int = 0) -> Segment:
        """What was appended since the last call: the part of the record that one turn adds to the ledger.

        `sequence`: which of the episode's this is.
        """
        start, self._marked = self._marked, len(self.ids)
        return self._from(start, sequence)

    def whole(self) -> Segment:
        """All that was appended."""
        return self._from(0, 0)

    def _from(self, start: int, sequence: int) -> Segment:
        return Segment(
            ids=np.asarray(self.ids[start:], dtype=np.int32).tobytes(),
            mask=bytes(self._mask[start:]),
            logprobs=self._logprobs[start:].tobytes(),
            versions=self._versions[start:].tobytes(),
            sequence=sequence,
        )


def join(
    builders: Sequence[TrajectoryBuilder], *, episode: str, group: str, task: str, reward: float, num_turns: int
) -> Trajectory:
    """The finished record of an episode's sequences."""
    parts = [builder.whole() for builder in builders]
    lengths = [len(part.mask) for part in parts]
    return Trajectory(
        episode=episode,
        group=group,
        task=task,
        reward=reward,
        ids=b"".join(part.ids for part in parts),
        mask=b"".join(part.mask for part in parts),
        logprobs=b"".join(part.logprobs for part in parts),
        versions=b"".join(part.versions for part in parts),
        num_turns=num_turns,
        starts=tuple(accumulate(lengths[:-1], initial=0)),
    )
