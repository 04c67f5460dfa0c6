"""Configuration of the inference engines."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from agentrl.bounds import Count, CountOrZero, Seconds


class EngineBackend(Enum):
    """What serves the model."""

    embedded = "embedded"
    """agentrl's own CPU server with SGLang's API: for laptops and tests."""
    sglang = "sglang"
    """Real SGLang, started and supervised, in an environment of its own: see inference.sglang."""
    attached = "attached"
    """Servers that somebody else runs: see inference.urls."""


class Dtype(Enum):
    """Number format of weights and KV cache."""

    float32 = "float32"
    """The one to use on CPU."""
    bfloat16 = "bfloat16"
    """Half the memory; on CPU it moves log-probs by up to 0.02."""


class Device(Enum):
    """Where SGLang computes."""

    cuda = "cuda"
    """NVIDIA GPUs."""
    cpu = "cpu"
    """Small models, for tests: scripts/sglang/setup_cpu.sh makes the environment."""


class Router(Enum):
    """Who chooses the engine of an episode."""

    direct = "direct"
    """The controller: the engine with the most free KV, where the episode then stays."""
    sglang = "sglang"
    """SGLang's router, which keeps an episode on one engine by its routing key: for clusters that have one anyway."""


@dataclass(frozen=True, kw_only=True)
class SGLangConfig:
    """Real SGLang servers; for inference.backend sglang only."""

    python: str = ".venv-sglang/bin/python"
    """Interpreter of the environment that SGLang is installed in; its pins exclude agentrl's. A relative path is taken
    from where `agentrl` is called."""

    device: Device = Device.cuda
    """Where it computes."""

    gpus_per_engine: Count = 1
    """Tensor-parallel size. Engine i gets the GPUs from i times this on."""

    args: list[str] = field(default_factory=list)
    """Further arguments of `sglang.launch_server`, each with its value behind an equals sign:
    [--attention-backend=fa3, --enable-torch-compile]. Checked against the list that the server itself prints."""


@dataclass(frozen=True, kw_only=True)
class InferenceConfig:
    backend: EngineBackend = EngineBackend.embedded
    """Server program behind SGLang's HTTP API."""

    num_engines: Count = 1
    """Server processes. Episodes are spread over them and stay where they started."""

    sglang: SGLangConfig = field(default_factory=SGLangConfig)
    """Real SGLang servers."""

    urls: list[str] = field(default_factory=list)
    """Servers to attach to with backend attached, one an engine. They are never started or stopped, and must be able to
    read the run directory: that is where new weights are."""

    router: Router = Router.direct
    """Who chooses the engine of an episode. Orders to engines never go through a router."""

    router_url: str | None = None
    """A router that runs already, and is this run's alone: its workers are replaced. None: one is started."""

    router_python: str | None = None
    """Interpreter of an environment with sglang-router. None: inference.sglang.python with backend sglang, otherwise
    agentrl's own."""

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
