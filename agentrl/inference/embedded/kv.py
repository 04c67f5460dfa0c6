"""The KV cache of running sequences: one row (slot) each, and copies in and out of it.

Axes: L layers, S slots, H key-value heads, T tokens, D head size. Rows are contiguous, so that a batch in slots 0 to
n-1 is a view. Memory is mapped on first touch: a slot costs what its longest sequence needed, not T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from agentrl.inference.embedded.scheduler import Copy, KvOperation, Park, Restore

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Shape of a model's KV cache."""

    num_layers: int
    num_kv_heads: int
    head_dim: int


class KvCache:
    """Keys and values of all slots. Everything in it is finite at all times: masked tokens still enter products."""

    def __init__(self, geometry: Geometry, *, num_slots: int, num_tokens: int, dtype: torch.dtype) -> None:
        self.geometry = geometry
        self.num_slots = num_slots
        self.num_tokens = num_tokens
        shape = (geometry.num_layers, num_slots, geometry.num_kv_heads, num_tokens, geometry.head_dim)
        self.k_LSHTD = _lazy_zeros(shape, dtype)
        self.v_LSHTD = _lazy_zeros(shape, dtype)

    def write_index(self, slots_N: torch.Tensor, positions_N: torch.Tensor) -> torch.Tensor:
        """Rows, in a layer's cache viewed as [S*H*T, D], of each token's heads: int64[N*H]."""
        heads_H = torch.arange(self.geometry.num_kv_heads)
        rows_NH = (slots_N[:, None] * self.geometry.num_kv_heads + heads_H) * self.num_tokens + positions_N[:, None]
        return rows_NH.flatten()

    def layer_rows(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A layer's keys and values as [S*H*T, D], to write to by `write_index`."""
        dim = self.geometry.head_dim
        return self.k_LSHTD[layer].view(-1, dim), self.v_LSHTD[layer].view(-1, dim)

    def apply(self, operation: KvOperation) -> None:
        """Carry out one operation of the scheduler."""
        match operation:
            case Park(slot, length, entry):
                entry.kv = (self.k_LSHTD[:, slot, :, :length].clone(), self.v_LSHTD[:, slot, :, :length].clone())
            case Restore(entry, slot, length):
                k_LHTD, v_LHTD = entry.kv
                self.k_LSHTD[:, slot, :, :length] = k_LHTD[:, :, :length]
                self.v_LSHTD[:, slot, :, :length] = v_LHTD[:, :, :length]
            case Copy(source, target, length):
                self.k_LSHTD[:, target, :, :length] = self.k_LSHTD[:, source, :, :length]
                self.v_LSHTD[:, target, :, :length] = self.v_LSHTD[:, source, :, :length]


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Zeros whose pages the kernel maps on first touch (calloc), which torch.zeros would all touch."""
    carrier = {torch.float32: np.float32, torch.bfloat16: np.uint16}[dtype]
    return torch.from_numpy(np.zeros(shape, dtype=carrier)).view(dtype)
