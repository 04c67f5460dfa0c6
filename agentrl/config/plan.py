"""What launching a job would start, and how big it is. Pure: nothing is started, written or looked up.

Memory figures are lower bounds made of what can be counted (runtime, weights, KV cache, optimizer state), without
activations; they say whether a job has a chance, not how far it will go.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter

from agentrl.config.lint import Finding, LintFacts, lint
from agentrl.config.policy_lag import LagPlan, predict_lag
from agentrl.config.schema import JobConfig
from agentrl.inference.config import Dtype, EngineBackend, Router
from agentrl.model.config import Recipe
from agentrl.sandbox.config import Isolation, SandboxConfig

_MIB = 1 << 20
CONTROLLER_BYTES = 120 * _MIB
"""Resident memory of a Python process with aiohttp and the tokenizer."""
ROUTER_BYTES = 80 * _MIB
"""Resident memory of sglang-router 0.3.2 before it has served anything."""
TORCH_BYTES = 300 * _MIB
"""Resident memory of a process that imported torch and the model code."""
ADAM_BYTES_PER_PARAMETER = 16
"""float32 weight, gradient and two moments."""

_DEADLINES = {
    "agent.tool_timeout_s": "the command is killed",
    "agent.turn_timeout_s": "the episode is graded",
    "agent.episode_timeout_s": "the episode is graded",
    "sandbox.start_timeout_s": "infrastructure failure",
    "sandbox.build_timeout_s": "a step of an image fails",
    "sandbox.lifetime_s": "the sandbox is closed",
    "inference.request_timeout_s": "the engine counts as broken",
    "inference.startup_timeout_s": "the engine is restarted",
    "publish.timeout_s": "the engine is restarted",
    "trainer.start_timeout_s": "the trainer is restarted",
    "trainer.collective_timeout_s": "the trainer is restarted",
    "trainer.step_timeout_s": "the trainer is restarted",
    "schedule.stall_timeout_s": "the run stops",
}
"""What happens when each deadline passes."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """What of a model decides memory."""

    num_parameters: int
    kv_values_per_token: int
    """Numbers that one token adds to the KV cache: 2 x layers x KV heads x head size."""


TINY_SHAPE = ModelShape(num_parameters=110_000, kv_values_per_token=2 * 2 * 4 * 16)
"""The model of recipe `tiny`."""


@dataclass(frozen=True, kw_only=True)
class PlanFacts:
    """What the configuration does not say about the job at hand."""

    run_stem: str = "run"
    """Name of the YAML file without its ending."""
    model: ModelShape | None = None
    """Shape of the model in `model.path`; None: not known."""
    lint: LintFacts = field(default_factory=LintFacts)


@dataclass(frozen=True, kw_only=True)
class ProcessPlan:
    """One kind of process."""

    role: str
    count: int
    command: str
    """What is run, shortened to what tells it apart."""
    threads: int
    """OMP threads of each."""
    memory_bytes: int | None
    """Of each, at least; None: the model's size is not known."""
    when: str


@dataclass(frozen=True, kw_only=True)
class SandboxPlan:
    """The sandboxes that may be alive at once."""

    provider: str
    count: int
    memory_limit_bytes: int
    """Of each; a limit, not a reservation."""
    lifetime_s: float


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """Arithmetic of one step and of the run."""

    groups_per_step: int
    group_size: int
    episodes_per_step: int
    max_turns: int
    max_tokens_per_step: int
    """Tokens that the trainer sees in one step, at most."""
    max_sampled_per_step: int
    """Tokens that the engines sample for one step, at most."""
    steps: int
    episodes: int
    """Trained episodes of the whole run."""
    eval_episodes: int
    """Greedy episodes of all evaluations together."""


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """One wait that is bounded."""

    key: str
    seconds: float
    then: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that `agentrl plan` prints."""

    run_dir: str
    model: str
    tasks: str
    processes: tuple[ProcessPlan, ...]
    sandboxes: SandboxPlan
    batch: BatchPlan
    lag: LagPlan
    deadlines: tuple[Deadline, ...]
    findings: tuple[Finding, ...]
    problem: str | None = None
    """Why this machine would not start it, if the lint finds no error; looked for by whoever prints the plan."""
    warnings: tuple[str, ...] = ()
    """What a launch would say beside the findings."""


def plan(config: JobConfig, facts: PlanFacts | None = None) -> Plan:
    """The plan of a job."""
    known = facts or PlanFacts()
    sandbox = config.sandbox
    return Plan(
        run_dir=run_dir_rule(config, known.run_stem),
        model=config.model.path or f"recipe {config.model.recipe.name}",
        tasks=config.tasks.path or f"family {config.tasks.family.name}",
        processes=tuple(_processes(config, known)),
        sandboxes=SandboxPlan(
            provider=_provider(sandbox),
            count=min(sandbox.max_sandboxes, config.schedule.max_live_episodes),
            memory_limit_bytes=sandbox.memory_mb * _MIB,
            lifetime_s=sandbox.lifetime_s,
        ),
        batch=_batch(config),
        lag=predict_lag(config),
        deadlines=_deadlines(config),
        findings=tuple(lint(config, known.lint)),
    )


def _provider(sandbox: SandboxConfig) -> str:
    if sandbox.isolation is Isolation.none:
        return "no isolation: this machine itself"
    return sandbox.backend.name


_ENGINE_COMMANDS = {
    EngineBackend.embedded: "python -m agentrl.inference.embedded",
    EngineBackend.sglang: "python -m sglang.launch_server",
    EngineBackend.attached: "attached, not started",
}


def run_dir_rule(config: JobConfig, stem: str) -> str:
    """Where the run directory will be: runs/NAME, or the file's name with the next free number."""
    return f"{config.cluster.runs_dir}/{config.name or f'{stem}-NNN (the next free number)'}"


def _processes(config: JobConfig, facts: PlanFacts) -> list[ProcessPlan]:
    model, inference, trainer = config.model, config.inference, config.trainer
    shape = TINY_SHAPE if model.recipe is Recipe.tiny else facts.model
    plans = [
        ProcessPlan(
            role="controller",
            count=1,
            command="agentrl launch",
            threads=1,
            memory_bytes=CONTROLLER_BYTES,
            when="the whole run",
        ),
        ProcessPlan(
            role="engine",
            count=inference.num_engines,
            command=_ENGINE_COMMANDS[inference.backend],
            threads=inference.threads,
            memory_bytes=None if shape is None else _engine_bytes(config, shape),
            when="the whole run",
        ),
        ProcessPlan(
            role="trainer rank",
            count=trainer.world_size,
            command="torchrun -m agentrl.trainer",
            threads=trainer.threads,
            memory_bytes=None if shape is None else _rank_bytes(config, shape),
            when="the whole run",
        ),
    ]
    if inference.router is Router.sglang:
        plans.insert(2, _router(inference.router_url))
    if model.recipe is Recipe.none:
        return plans
    warm_up = ProcessPlan(
        role="model warm-up",
        count=1,
        command="python -m agentrl.model",
        threads=1,
        memory_bytes=None if shape is None else TORCH_BYTES + shape.num_parameters * ADAM_BYTES_PER_PARAMETER,
        when="before step 0",
    )
    return [plans[0], warm_up, *plans[1:]]


def _router(url: str | None) -> ProcessPlan:
    return ProcessPlan(
        role="router",
        count=1,
        command="python -m sglang_router.launch_router" if url is None else f"attached at {url}, not started",
        threads=1,
        memory_bytes=ROUTER_BYTES,
        when="the whole run",
    )


def _engine_bytes(config: JobConfig, shape: ModelShape) -> int:
    """Runtime, weights and a full KV cache."""
    width = 4 if config.inference.dtype is Dtype.float32 else 2
    values = shape.num_parameters + shape.kv_values_per_token * config.inference.max_total_tokens
    return TORCH_BYTES + width * values


def _rank_bytes(config: JobConfig, shape: ModelShape) -> int:
    """Runtime, this rank's share of the training state, and the weights gathered for a forward pass."""
    state = shape.num_parameters * ADAM_BYTES_PER_PARAMETER // config.trainer.world_size
    return TORCH_BYTES + state + 4 * shape.num_parameters


def _batch(config: JobConfig) -> BatchPlan:
    groups, size = config.schedule.groups_per_step, config.algorithm.group_size
    episodes = groups * size
    sampled = min(config.agent.max_turns * config.agent.max_turn_tokens, config.agent.max_episode_tokens)
    return BatchPlan(
        groups_per_step=groups,
        group_size=size,
        episodes_per_step=episodes,
        max_turns=config.agent.max_turns,
        max_tokens_per_step=episodes * config.agent.max_episode_tokens,
        max_sampled_per_step=episodes * sampled,
        steps=config.schedule.steps,
        episodes=episodes * config.schedule.steps,
        eval_episodes=_evaluations(config) * min(config.schedule.eval_tasks, config.tasks.num_heldout),
    )


def _evaluations(config: JobConfig) -> int:
    """Before the first step, after the last one, and in between."""
    every, steps = config.schedule.eval_every, config.schedule.steps
    return 2 + ((steps - 1) // every if every else 0)


def _deadlines(config: JobConfig) -> tuple[Deadline, ...]:
    """Every bounded wait, shortest first."""
    deadlines = [Deadline(key=key, seconds=attrgetter(key)(config), then=then) for key, then in _DEADLINES.items()]
    return tuple(sorted(deadlines, key=lambda deadline: deadline.seconds))
