"""Tensors by handle: what travels says where in shared memory they are, and the receiver maps the same pages.

The format is that of `torch.multiprocessing`, which SGLang's /update_weights_from_tensor takes: on CPU names of files
in /dev/shm, on CUDA IPC handles. The sender keeps the tensors until the receiver has copied them.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing
from torch import Tensor

_ALLOWED = {
    ("torch", "device"),
    ("torch", "dtype"),
    ("torch", "Size"),
    ("torch", "Tensor"),
    ("torch", "float32"),
    ("torch", "bfloat16"),
    ("torch", "float16"),
    ("torch.storage", "UntypedStorage"),
    ("torch.storage", "TypedStorage"),
    ("torch.multiprocessing.reductions", "rebuild_tensor"),
    ("torch.multiprocessing.reductions", "rebuild_storage_filename"),
    ("torch.multiprocessing.reductions", "rebuild_typed_storage"),
    ("collections", "OrderedDict"),
}
"""All that a payload of CPU tensors names. Anything else is refused: a pickle could otherwise run what it likes."""


def share(tensors: Sequence[Tensor]) -> tuple[list[Tensor], str, str]:
    """Copies of `tensors`, of one type, in one piece of shared memory; its name in /dev/shm; the socket of its manager.

    The manager is a small process that torch starts once. It removes the piece with the last tensor here, or with this
    process, and ends when nobody that has mapped a piece is left.
    """
    torch.multiprocessing.set_sharing_strategy("file_system")  # type: ignore[no-untyped-call]
    flat = torch.empty(sum(tensor.numel() for tensor in tensors), dtype=tensors[0].dtype)
    manager, handle, _ = flat.untyped_storage()._share_filename_cpu_()
    copies, place = [], 0
    for tensor in tensors:
        copies.append(flat[place : place + tensor.numel()].view(tensor.shape).copy_(tensor))
        place += tensor.numel()
    return copies, handle.decode().lstrip("/"), manager.decode()


def to_handles(named: Sequence[tuple[str, Tensor]]) -> bytes:
    """What says where these tensors are. Those on CPU must be `share`d: others would be copied to a new place."""
    shared = [tensor.is_cuda or tensor.is_shared() for _, tensor in named]  # type: ignore[no-untyped-call]
    assert all(shared), "not in shared memory"
    payload = io.BytesIO()
    ForkingPickler(payload).dump(list(named))
    return payload.getvalue()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise ValueError(f"a payload of weights may not name {module}.{name}")
        return super().find_class(module, name)


def from_handles(payload: bytes) -> list[tuple[str, Tensor]]:
    """The tensors, mapped and not copied. Raises ValueError if they are gone or it is no payload of CPU tensors."""
    try:
        named = _Unpickler(io.BytesIO(payload)).load()
    except (pickle.UnpicklingError, RuntimeError, EOFError, TypeError, AttributeError) as error:
        raise ValueError(f"no tensors at these handles: {error}") from error
    if not isinstance(named, list) or not all(isinstance(t, Tensor) and isinstance(n, str) for n, t in named):
        raise ValueError("not a list of names and tensors")
    return named
