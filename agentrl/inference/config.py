"""Configuration of the inference engines."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class EngineBackend(Enum):
    """What serves the model."""

    embedded = "embedded"
    """agentrl's own CPU server with SGLang's API: for laptops and tests."""


@dataclass(frozen=True, kw_only=True)
class InferenceConfig:
    backend: EngineBackend = EngineBackend.embedded
    """Server program behind SGLang's HTTP API."""

    num_engines: int = 1
    """Server processes. Episodes are spread over them and stay where they started."""

    max_running_requests: int = 64
    """Requests decoded together in one engine; more wait in its queue."""

    max_total_tokens: int = 65536
    """KV-cache capacity of one engine, in tokens, shared by running requests and the prefix cache."""

    context_length: int = 512
    """Longest prompt plus completion, in tokens. A longer request is refused (HTTP 400)."""

    dtype: str = "float32"
    """Weights and KV cache: float32 or bfloat16. On CPU keep float32: bfloat16 moves log-probs by up to 0.02."""

    threads: int = 1
    """OMP threads of one engine. More than one hurts small models."""

    startup_timeout_s: float = 180.0
    """Until a started engine must be healthy."""

    request_timeout_s: float = 300.0
    """Deadline of one HTTP request to an engine; must exceed the longest generation."""

    max_restarts: int = 5
    """Restarts of one engine process before the run gives up."""
