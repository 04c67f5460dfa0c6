"""The ranks of a trainer job: joining, sharing rank 0's bytes, summing. Gloo on CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from agentrl.trainer.job import ExitCode, TrainerExit


@dataclass(frozen=True, kw_only=True)
class World:
    """This process among its peers."""

    rank: int
    size: int

    @staticmethod
    def join(timeout_s: float) -> World:
        """Meet the other ranks that torchrun started; without torchrun, a world of one.

        A collective that does not complete in `timeout_s` raises: so a hung rank ends the job.
        """
        timeout = timedelta(seconds=timeout_s)
        if "RANK" not in os.environ:
            dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1, timeout=timeout)
        else:
            if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
                # All on one machine: whatever its host name resolves to (VPNs, laptops on the move) does not matter.
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            dist.init_process_group("gloo", timeout=timeout)
        return World(rank=dist.get_rank(), size=dist.get_world_size())

    def mesh(self) -> DeviceMesh:
        return init_device_mesh("cpu", (self.size,))

    def share(self, produce: Callable[[], bytes]) -> bytes:
        """What `produce` returns on rank 0, on every rank. Its TrainerExit is raised on every rank, too."""
        data, failure = b"", None
        if self.rank == 0:
            try:
                data = produce()
            except TrainerExit as error:
                failure = error
        header = torch.tensor([failure.code if failure else 0, len(data)])
        dist.broadcast(header, src=0)
        if failure:
            raise failure
        code, length = header.tolist()
        if code:
            raise TrainerExit(ExitCode(code), "rank 0 ended the job")
        payload = (
            torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(length, dtype=torch.uint8)
        )
        if length:
            dist.broadcast(payload, src=0)
        return payload.numpy().tobytes()

    def sum(self, values: Tensor) -> Tensor:
        """Element-wise sum over ranks, in place."""
        dist.all_reduce(values)
        return values

    def leave(self) -> None:
        dist.destroy_process_group()
