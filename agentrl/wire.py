"""Structs that cross a process boundary: controller <-> trainer, and what the ledger stores as blobs.

Encoded with msgpack (`encode`, `decode`). Arrays travel as raw little-endian bytes. Each struct says who writes it and
who reads it. Nothing here knows torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
MaskArray = npt.NDArray[np.uint8]


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """The token-exact record of one episode. Written by the rollout; read by the trainer and the ledger.

    All four arrays have length T = prompt + sampled + observation tokens, in the order in which the model saw them. An
    episode is one sequence, unless its chat template or its history broke (docs/agents.md): then it is several, one
    after the other. What a sequence repeats of another has mask 0, so every sampled token has mask 1 once.
    """

    episode: str
    """Episode id, unique in the run."""
    group: str
    """Group id; the trainer normalises rewards within it."""
    task: str
    """Task name, for reports."""
    reward: float
    """The verifier's reward; only success and model_failure episodes become trajectories in a batch."""
    ids: bytes
    """int32[T]: token ids, appended turn by turn and never re-tokenised."""
    mask: bytes
    """uint8[T]: 1 where the token was sampled by the policy, else 0."""
    logprobs: bytes
    """float32[T]: behaviour log-prob where mask is 1, else 0."""
    versions: bytes
    """int32[T]: policy version that sampled the token where mask is 1, else -1."""
    num_turns: int
    """Model generations in the episode."""
    starts: tuple[int, ...] = (0,)
    """Where each sequence begins."""

    def sequences(self) -> list[Trajectory]:
        """A record of one sequence for each of them, with all else as it is."""
        if len(self.starts) == 1:
            return [self]
        ends = (*self.starts[1:], self.num_tokens)
        return [self._part(start, end) for start, end in zip(self.starts, ends, strict=True)]

    def _part(self, start: int, end: int) -> Trajectory:
        return msgspec.structs.replace(
            self,
            ids=self.ids[4 * start : 4 * end],
            mask=self.mask[start:end],
            logprobs=self.logprobs[4 * start : 4 * end],
            versions=self.versions[4 * start : 4 * end],
            starts=(0,),
        )

    @property
    def longest(self) -> int:
        """Tokens of its longest sequence: what an engine held of it at most."""
        ends = (*self.starts[1:], self.num_tokens)
        return max(end - start for start, end in zip(self.starts, ends, strict=True))

    def ids_array(self) -> IntArray:
        return np.frombuffer(self.ids, dtype=np.int32)

    def mask_array(self) -> MaskArray:
        return np.frombuffer(self.mask, dtype=np.uint8)

    def logprobs_array(self) -> FloatArray:
        return np.frombuffer(self.logprobs, dtype=np.float32)

    def versions_array(self) -> IntArray:
        return np.frombuffer(self.versions, dtype=np.int32)

    @property
    def num_tokens(self) -> int:
        return len(self.mask)

    @property
    def num_sampled(self) -> int:
        return int(self.mask_array().sum())

    @property
    def oldest_version(self) -> int:
        """Smallest policy version of any sampled token; -1 if nothing was sampled."""
        versions = self.versions_array()[self.mask_array() == 1]
        return int(versions.min()) if versions.size else -1

    @property
    def newest_version(self) -> int:
        """Largest policy version of any sampled token; -1 if nothing was sampled."""
        return int(self.versions_array().max(initial=-1))


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """What one turn appended to a trajectory. Written by the rollout into the ledger; arrays as in `Trajectory`."""

    ids: bytes
    mask: bytes
    logprobs: bytes
    versions: bytes
    sequence: int = 0
    """The one of the trajectory's sequences that it was appended to."""


class TrainBatch(msgspec.Struct, frozen=True, kw_only=True, tag="batch"):
    """Controller -> trainer: train on this. Serving the same step again gives the same batch."""

    batch_id: str
    step: int
    """The step that this batch makes: applying it turns policy version step-1 into version step."""
    trajectories: list[Trajectory]


class NoBatchYet(msgspec.Struct, frozen=True, kw_only=True, tag="wait"):
    """Controller -> trainer: nothing is ready; ask again at once (the request was held until its deadline)."""


class RunFinished(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    """Controller -> trainer: no further batch will come; exit with 0."""

    reason: str


NextReply = TrainBatch | NoBatchYet | RunFinished


class NextRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Trainer (rank 0) -> controller, POST /trainer/next: I am at `version`; what is next?"""

    epoch: int
    """Epoch of the controller that started this trainer; another epoch's request is refused (HTTP 409)."""
    version: int
    """Policy version that the trainer holds, from its checkpoint or its last step."""
    batch_id: str | None
    """Batch that made this version; None at version 0."""


class StepDone(msgspec.Struct, frozen=True, kw_only=True):
    """Trainer (rank 0) -> controller, POST /trainer/done, after checkpoint and export are on disk. Idempotent."""

    epoch: int
    version: int
    """The new policy version (= the batch's step)."""
    batch_id: str
    weights_path: str
    """Absolute folder of the version, complete before this message is sent. The trainer's word on the weights is always
    in it; the weights themselves as the job's publication says."""
    metrics: dict[str, float]
    """Scalars of the step; the names are listed in docs/metrics.md."""


class WeightsOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Controller -> trainer: send an engine your weights. It stands until it is no longer among the `Orders`."""

    number: int
    """Never used twice by a controller."""
    version: int
    base: int | None
    """Version that the engine holds whole: what has not changed since need not travel. None: everything travels."""
    devices: list[int]
    """For each rank of the engine the number of its GPU, or -1 for the CPU."""


class OrdersRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Trainer (rank 0) -> controller, POST /trainer/orders: which stand? Held until these are not the `known` ones."""

    epoch: int
    known: list[int]


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """Controller -> trainer, answer to OrdersRequest. Whatever is not in it is over, and need not be kept."""

    standing: list[WeightsOrder]


class Meeting(msgspec.Struct, frozen=True, kw_only=True):
    """Where the ranks of an engine join the trainer's rank 0."""

    address: str
    port: int
    name: str
    """Of the process group; never used twice."""
    size: int
    """Of the group: the engine's ranks and the trainer's one, which is rank 0."""
    backend: str
    """gloo or nccl."""


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Tensors that travel together."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    handles: list[bytes]
    """Where they are in shared memory, for each rank of the engine; none if they come through a group."""


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """Weights that the trainer is sending to one engine. Written by the trainer; the controller has the engine take
    them."""

    version: int
    pieces: list[Piece]
    """At least one, in the order in which they are sent."""
    meeting: Meeting | None
    """None: through shared memory."""
    num_bytes: int
    """Of all tensors in it."""


class WeightsOffer(msgspec.Struct, frozen=True, kw_only=True):
    """Trainer (rank 0) -> controller, POST /trainer/offer: the answer to an order."""

    epoch: int
    number: int
    transfer: Transfer | None
    """None: these weights are not there."""
    problem: str = ""
    """Why not."""


DELTA_BASE = "agentrl_base"
"""Key in the metadata of a safetensors file that holds only what has changed since that policy version. Whoever loads
it must hold that version or one between."""

PROBE_FILE = "agentrl_probe.json"
"""Name of a `Probe` in the folder of the weights that it belongs to."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """What the trainer says of weights, for engines to be held against. Written by the trainer, as JSON beside the
    weights; read by the controller."""

    ids: list[int]
    """Tokens to look at."""
    ends: list[int]
    """Prefixes of them, by length."""
    logprobs: list[float]
    """Of each prefix: log-prob of the most probable next token, at temperature 1."""
    checksum: str | None = None
    """`whole_checksum` of the weights in the engines' number format; only where changes travel alone."""


class Ack(msgspec.Struct, frozen=True, kw_only=True):
    """Controller -> trainer, answer to StepDone. `applied` is False if that version was already known."""

    applied: bool


def whole_checksum(digests: Mapping[str, str]) -> str:
    """One for all tensors, from the digest of each by its name."""
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(digests.items()))
    return hashlib.blake2b(lines.encode(), digest_size=16).hexdigest()


S = TypeVar("S")

_encoder = msgspec.msgpack.Encoder()


def encode(message: object) -> bytes:
    """Message as msgpack bytes."""
    return _encoder.encode(message)


def decode(data: bytes, kind: type[S]) -> S:
    """Bytes as `kind` (a struct or a tagged union of them). Raises msgspec.ValidationError on anything else."""
    return msgspec.msgpack.decode(data, type=kind)
