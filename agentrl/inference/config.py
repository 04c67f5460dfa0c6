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


class Speculation(Enum):
    """How drafts of several tokens are made, of which the model keeps what it would have sampled. SGLang's names."""

    none = "none"
    """One token at a time."""
    EAGLE = "EAGLE"
    """A draft head on the model's own states."""
    EAGLE3 = "EAGLE3"
    """The same of the third kind."""
    NEXTN = "NEXTN"
    """The multi-token prediction layers that some models bring."""
    STANDALONE = "STANDALONE"
    """A small model of the same vocabulary."""
    NGRAM = "NGRAM"
    """What followed the same tokens before: no draft model."""


@dataclass(frozen=True, kw_only=True)
class SpeculationConfig:
    """Speculative decoding. The draft is not trained: as the policy moves, fewer of its tokens are kept, and generation
    slows down; what is sampled stays the policy's."""

    algorithm: Speculation = Speculation.none
    """How drafts are made."""

    draft_model: str | None = None
    """Folder of the draft's weights; for EAGLE, EAGLE3 and STANDALONE."""

    num_steps: Count | None = None
    """Draft steps before each check; None: SGLang's choice."""

    topk: Count | None = None
    """Tokens that each draft step branches into; None: SGLang's choice."""

    num_draft_tokens: Count | None = None
    """Draft tokens checked at once; None: SGLang's choice."""


class MemoryTag(Enum):
    """A part of an engine's GPU memory. SGLang's names."""

    kv_cache = "kv_cache"
    """Keys and values: most of it, by configuration."""
    weights = "weights"
    """The model. What is there after the return is loaded anew."""
    cuda_graph = "cuda_graph"
    """Captured graphs, and what they work in."""


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

    priority_scheduling: bool = True
    """Whether requests of episodes that were carried over from older versions leave an engine's queue first."""

    deterministic: bool = False
    """Whether kernels give equal results in any batch: a seed then fixes what is sampled. Slower, and GPUs only."""

    release: list[MemoryTag] = field(default_factory=lambda: list(MemoryTag))
    """What a swing engine gives up while the trainer works. What it keeps, the trainer must fit beside."""

    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    """Speculative decoding."""

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
