"""The `Engine` protocol: what the controller and the rollout need of an inference server.

Production: `agentrl.inference.client.SGLangClient` over SGLang's native HTTP API, whichever server answers it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from agentrl.wire import Transfer


class FinishReason(StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    """A stop token was sampled; it is the last of the output ids."""
    LENGTH = "length"
    """max_new_tokens were sampled."""
    ABORT = "abort"
    """It was aborted; the output ids are what had been sampled until then, possibly none."""


class PauseMode(StrEnum):
    """What a pause does to the requests that run. SGLang's words."""

    ABORT = "abort"
    """They end now, with what they have."""
    RETRACT = "retract"
    """They go back to the queue, and their KV is computed again afterwards."""
    IN_PLACE = "in_place"
    """They stop between two tokens and go on with the KV that they have."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to sample. Filters other than temperature are absent on purpose: see the lint rule `sampling_filters`."""

    max_new_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    stop_token_ids: tuple[int, ...] = ()
    """Sampling one of these ends the generation; it stays in the output ids."""
    seed: int | None = None
    """Makes one request reproducible whatever it is batched with; None: the engine's own stream."""
    priority: int = 0
    """Higher ones leave the queue of an engine with priority scheduling first."""


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What one request sampled. `ids`, `logprobs` and `versions` have equal length."""

    ids: list[int]
    logprobs: list[float]
    """Log-prob of each id under the temperature-scaled full softmax it was sampled from. Greedy: at temperature 1."""
    versions: list[int]
    """Policy version of the weights that sampled each id; they rise where weights changed while it ran."""
    finish: FinishReason
    cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache."""
    engine: str | None = None
    """Name of the engine that sampled it, where it goes through a router; None: not told."""


@dataclass(frozen=True, kw_only=True)
class EngineLoad:
    """A moment's load of one engine."""

    num_running: int
    num_queued: int
    kv_tokens_used: int
    kv_tokens_capacity: int


class Engine(Protocol):
    """One inference server. Every method raises EngineError when it cannot be reached or misses its deadline."""

    @property
    def name(self) -> str:
        """Unique in the run; for routing, logs and metrics."""
        ...

    @property
    def url(self) -> str:
        """Where a router reaches it."""
        ...

    async def generate(self, rid: str, input_ids: list[int], params: SamplingParams) -> Generation:
        """Sample a continuation of `input_ids`. `rid` has a fixed length in a run: servers match aborts by prefix.

        KV that was computed under one version is never given to a request that is sent under a later one.

        Raises EngineRequestError if the server refuses the request as malformed.
        """
        ...

    async def best_logprobs(self, ids: list[int], ends: list[int]) -> list[float]:
        """Of each prefix `ids[:end]`: log-prob of the most probable next token, at temperature 1."""
        ...

    async def abort(self, rid: str | None) -> None:
        """Abort one request, or all with None. Their `generate` calls return what was sampled, finish ABORT."""
        ...

    async def pause(self, mode: PauseMode = PauseMode.ABORT) -> None:
        """Stop everything that runs, as `mode` says, and hold new requests until `resume`."""
        ...

    async def resume(self) -> None: ...

    async def flush_cache(self) -> None:
        """Forget all cached prefixes. Only while nothing runs."""
        ...

    async def update_weights(self, path: str, version: int, *, flush_cache: bool = True) -> None:
        """Load the weights in folder `path` and label what is sampled from now on with `version`.

        Waits for what runs, unless the engine is paused. With `flush_cache=False` requests that were paused in place
        keep their KV; with True there must be none.
        """
        ...

    async def receive_weights(self, transfer: Transfer, *, flush_cache: bool = True) -> None:
        """As `update_weights`, but from the trainer itself. What is not sent stays as it is.

        If it fails half way the engine may serve a mixture: it then says that it serves version
        `labels.NOT_OURS`.
        """
        ...

    async def checksums(self) -> dict[str, str]:
        """Of every tensor, by the server's own names for them."""
        ...

    async def release_memory(self) -> None:
        """Give up weights and KV memory. Only while nothing runs."""
        ...

    async def resume_memory(self) -> None: ...

    async def load(self) -> EngineLoad: ...

    async def gauges(self) -> dict[str, float]:
        """What it says of its work, by the names in `agentrl.inference.gauges`."""
        ...

    async def version(self) -> int:
        """Policy version that the engine serves now."""
        ...

    async def build(self) -> dict[str, str]:
        """What of the server decides how equal weights sample, by name: its version, number formats, kernels."""
        ...

    async def healthy(self) -> bool:
        """Whether the engine answers a health check; never raises."""
        ...

    async def close(self) -> None:
        """Release the connection; the server is not touched."""
        ...
