"""One forward pass as tensors: what the models get, made from the scheduler's plan. N tokens, of which B are sampled
after; the first `num_decode` tokens are decode steps, the others belong to prompt chunks."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from agentrl.inference.embedded.scheduler import Plan


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one prompt: batch tokens [offset, offset + count) at positions from `start` on."""

    slot: int
    start: int
    count: int
    offset: int

    @property
    def end(self) -> int:
        return self.start + self.count


@dataclass(frozen=True)
class Batch:
    ids_N: torch.Tensor
    positions_N: torch.Tensor
    slots_N: torch.Tensor
    num_decode: int
    decode_length: int
    """KV length, its own token included, of the longest decoding sequence; 0 without one."""
    num_slots: int
    dense: bool
    """Every used slot decodes: the decode tokens are those of slots 0 to num_slots - 1, in order."""
    chunks: list[Chunk]
    sampled_B: torch.Tensor | None
    """Which of the N tokens have a token sampled after them; None: all."""

    @property
    def num_tokens(self) -> int:
        return self.ids_N.shape[0]


def make_batch(plan: Plan) -> Batch:
    """Tensors of a plan that has works."""
    ids = [work.sequence.tokens[work.start] for work in plan.decodes]
    positions = [work.start for work in plan.decodes]
    slots = [work.sequence.slot for work in plan.decodes]
    num_decode = len(ids)
    longest = max(positions) + 1 if positions else 0
    sampled = list(range(num_decode))
    chunks = []
    for work in plan.prefills:
        chunk = Chunk(work.sequence.slot, work.start, work.count, len(ids))
        chunks.append(chunk)
        ids += work.sequence.tokens[chunk.start : chunk.end]
        positions += range(chunk.start, chunk.end)
        slots += [chunk.slot] * chunk.count
        if work.samples:
            sampled.append(len(ids) - 1)
    return Batch(
        ids_N=torch.tensor(ids, dtype=torch.int64),
        positions_N=torch.tensor(positions, dtype=torch.int64),
        slots_N=torch.tensor(slots, dtype=torch.int64),
        num_decode=num_decode,
        decode_length=longest,
        num_slots=plan.num_slots,
        dense=num_decode == plan.num_slots,
        chunks=chunks,
        sampled_B=torch.tensor(sampled, dtype=torch.int64) if chunks else None,
    )
