"""Configuration of the inference engines."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from agentrl.bounds import Count, CountOrZero, Seconds


class EngineBackend(Enum):
    """What serves the model."""

    embedded = "embedded"
    """agentrl's own CPU server with SGLang's API: for laptops and tests."""


class Dtype(Enum):
    """Number format of weights and KV cache."""

    float32 = "float32"
    """The one to use on CPU."""
    bfloat16 = "bfloat16"
    """Half the memory; on CPU it moves log-probs by up to 0.02."""


@dataclass(frozen=True, kw_only=True)
class InferenceConfig:
    backend: EngineBackend = EngineBackend.embedded
    """Server program behind SGLang's HTTP API."""

    num_engines: Count = 1
    """Server processes. Episodes are spread over them and stay where they started."""

    max_running_requests: Count = 64
    """Requests decoded together in one engine; more wait in its queue."""

    max_total_tokens: Count = 65536
    """KV-cache capacity of one engine, in tokens, shared by running requests and the prefix cache."""

    context_length: Count = 512
    """Longest prompt plus completion, in tokens. A longer request is refused (HTTP 400)."""

    dtype: Dtype = Dtype.float32
    """Number format of weights and KV cache."""

    threads: Count = 1
    """OMP threads of one engine. More than one hurts small models."""

    startup_timeout_s: Seconds = 180.0
    """Until a started engine must be healthy."""

    request_timeout_s: Seconds = 300.0
    """Deadline of one HTTP request to an engine; must exceed the longest generation."""

    max_restarts: CountOrZero = 5
    """Restarts of one engine process before the run gives up."""
