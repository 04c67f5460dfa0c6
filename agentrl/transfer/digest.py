"""A tensor's digest: equal exactly where type, shape and every bit are."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def digest(tensor: Tensor) -> str:
    """BLAKE2b with 128 bits, about 1 GB/s a core."""
    plain = tensor.detach().cpu().contiguous()
    made = hashlib.blake2b(f"{plain.dtype} {tuple(plain.shape)} ".encode(), digest_size=16)
    made.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return made.hexdigest()
