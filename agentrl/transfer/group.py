"""A process group of the trainer's rank 0 and the ranks of one engine, beside whatever groups either is in.

One group an engine and a publication: an engine that dies takes nobody with it, and one that comes late makes its own.
The store's prefixes are those that `torch.distributed` gives to a named group, because SGLang joins through that.
"""

from __future__ import annotations

import socket
import time
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import (  # type: ignore[attr-defined]
    BroadcastOptions,
    PrefixStore,
    ProcessGroupGloo,
    Store,
    TCPStore,
)

GLOO, NCCL = "gloo", "nccl"


def local_address(peer: str, port: int = 9) -> str:
    """This machine's address on the way to `peer`. Nothing is sent. Raises OSError if there is no way."""
    family = socket.getaddrinfo(peer, port, type=socket.SOCK_DGRAM)[0][0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, port))
        address: str = probe.getsockname()[0]
        return address


class Group:
    """Rank 0 is the trainer's and the only one that sends. Every wait ends at the deadline, with RuntimeError."""

    def __init__(self, store: Store, *, name: str, rank: int, size: int, backend: str, address: str, timeout_s: float):
        """Joins; returns when all are there. `address` is the interface that gloo binds to."""
        self._ends = time.monotonic() + timeout_s
        timeout = timedelta(seconds=timeout_s)
        device = "cuda" if backend == NCCL else "cpu"
        prefixed = PrefixStore(f"{device}/", PrefixStore(f"{name}/", PrefixStore(name, store)))
        if backend == NCCL:
            from torch.distributed import ProcessGroupNCCL

            options = ProcessGroupNCCL.Options()
            options._timeout = timeout
            self._backend: Any = ProcessGroupNCCL(prefixed, rank, size, options)
        else:
            options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            options._timeout = timeout
            options._devices = [ProcessGroupGloo.create_device(hostname=address)]
            self._backend = ProcessGroupGloo(prefixed, rank, size, options)

    def broadcast(self, tensor: Tensor) -> None:
        """Rank 0's values into everybody's `tensor`."""
        options = BroadcastOptions()
        options.rootRank = 0
        left_s = max(self._ends - time.monotonic(), 0.001)
        if not self._backend.broadcast([tensor], options).wait(timedelta(seconds=left_s)):
            raise RuntimeError("a broadcast of weights did not end")

    def close(self) -> None:
        """Leave; whoever still waits for this rank is told by its connection."""
        self._backend.shutdown()


def host_store(timeout_s: float) -> tuple[TCPStore, int]:
    """A store that others can connect to, and its port; it lives as long as the object."""
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))
    return store, store.port


def reach_store(address: str, port: int, timeout_s: float) -> TCPStore:
    """The store of another process. Raises RuntimeError."""
    return TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))


def empty(shape: list[int], dtype: str) -> Tensor:
    """Room for a tensor that is to be received. Raises ValueError for a type that torch does not have."""
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise ValueError(f"no such dtype: {dtype}")
    return torch.empty(shape, dtype=kind)
