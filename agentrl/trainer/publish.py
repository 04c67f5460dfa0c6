"""How each version leaves the trainer: the folder that is written, and what is held ready to be sent. On rank 0.

What is sent is a copy in memory, so that an engine that comes late gets the version that is live while the next one is
being trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from agentrl.trainer.export import write_folder
from agentrl.trainer.job import TrainerJob, is_whole, weights_folder
from agentrl.trainer.link import ControllerLink
from agentrl.trainer.publish_sender import Sender
from agentrl.trainer.shared_memory import SharedMemory
from agentrl.transfer.digest import digest
from agentrl.wire import Probe, whole_checksum

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass
class Changes:
    """When each tensor last changed, as far back as this trainer has lived."""

    since: int
    """Version from which on it is known."""
    digests: dict[str, str]
    changed_at: dict[str, int]

    def advance(self, version: int, digests: dict[str, str]) -> None:
        """A new version has these tensors."""
        for name, found in digests.items():
            if self.digests.get(name) != found:
                self.changed_at[name] = version
        self.digests = digests

    def after(self, base: int | None) -> set[str]:
        """Names of the tensors that may differ from those of version `base`; None: of no known version.

        At least one: an update without tensors is none.
        """
        if base is None or base < self.since:
            return set(self.digests)
        return {name for name in self.digests if self.changed_at.get(name, self.since) > base} or {min(self.digests)}


@dataclass(frozen=True)
class Staged:
    """A version, ready to be sent."""

    version: int
    tensors: dict[str, Tensor]
    """In the engines' number format, in memory; in shared memory where engines are to find them there."""
    changes: Changes | None
    """None: everything always travels."""

    def after(self, base: int | None) -> dict[str, Tensor]:
        """What an engine that holds version `base` lacks, or whatever; at least one tensor."""
        if self.changes is None:
            return self.tensors
        names = self.changes.after(base)
        return {name: tensor for name, tensor in self.tensors.items() if name in names}


class Publisher:
    """One life of rank 0."""

    def __init__(self, job: TrainerJob, link: ControllerLink) -> None:
        self._job = job
        self._publication = job.publication
        self._dtype = _DTYPES[job.publication.dtype]
        self._changes: Changes | None = None
        self._memory = SharedMemory(Path(job.run_dir)) if job.publication.send == "shared" else None
        self._sender = Sender(link, epoch=job.epoch, publication=job.publication, controller_url=job.controller_url)
        self._next: Staged | None = None

    def resume(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Start at a version that is in its folder already."""
        if self._publication.delta:
            self._changes = Changes(version, self._digests(weights), {})
        self._stage(version, weights)
        if self._publication.send is not None:
            self.offer()
            self._sender.start()

    def write(self, version: int, weights: Mapping[str, Tensor], probe: Probe) -> None:
        """Write the folder of a new version, and have it ready for `offer`."""
        run_dir = Path(self._job.run_dir)
        if self._changes is not None:
            digests = self._digests(weights)
            self._changes.advance(version, digests)
            probe = msgspec.structs.replace(probe, checksum=whole_checksum(digests))
        stored, base = self._to_store(version, weights)
        write_folder(weights_folder(run_dir, version), Path(self._job.model_path), probe, stored, base)
        self._stage(version, weights)

    def offer(self) -> None:
        """From now on engines can have the version that was written last."""
        if self._next is not None:
            self._sender.offer(self._next)

    def close(self) -> None:
        self._sender.close()

    def _to_store(self, version: int, weights: Mapping[str, Tensor]) -> tuple[Mapping[str, Tensor], int | None]:
        """What the folder of a version has, and the version that this is a change to."""
        publication = self._publication
        if is_whole(version, every=publication.every, total_steps=self._job.total_steps):
            return weights, None
        if publication.send is not None or self._changes is None:
            return {}, None  # engines have it from here, or not at all
        base = version - version % publication.every
        return {name: weights[name] for name in self._changes.after(base)}, base

    def _stage(self, version: int, weights: Mapping[str, Tensor]) -> None:
        if self._publication.send is None:
            return
        plain = {name: tensor.to(self._dtype) for name, tensor in weights.items()}
        copies = {n: t.clone() for n, t in plain.items()} if self._memory is None else self._memory.share(plain)
        # A copy of what is known of changes: it goes on with the next version while this one is sent.
        known = self._changes and Changes(
            self._changes.since, dict(self._changes.digests), dict(self._changes.changed_at)
        )
        self._next = Staged(version, copies, known)

    def _digests(self, weights: Mapping[str, Tensor]) -> dict[str, str]:
        return {name: digest(tensor.to(self._dtype)) for name, tensor in weights.items()}
