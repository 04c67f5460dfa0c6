"""The whole configuration of a run. Each component owns its own dataclass; this file only puts them together."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentrl.bounds import RunName, Seed
from agentrl.cluster.config import ClusterConfig
from agentrl.controller.config import PublishConfig, ScheduleConfig
from agentrl.inference.config import InferenceConfig
from agentrl.model.config import ModelConfig
from agentrl.observe.config import ObserveConfig
from agentrl.rollout.config import AgentConfig
from agentrl.sandbox.config import SandboxConfig
from agentrl.tasks.config import TasksConfig
from agentrl.trainer.config import AlgorithmConfig, TrainerConfig


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    name: RunName | None = None
    """Name of the run, and of its directory in cluster.runs_dir. None: the file's name plus a number."""

    seed: Seed = 0
    """Seed of everything random in the run: order of tasks, sampling, model warm-up."""

    model: ModelConfig = field(default_factory=ModelConfig)
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    tasks: TasksConfig = field(default_factory=TasksConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    publish: PublishConfig = field(default_factory=PublishConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    observe: ObserveConfig = field(default_factory=ObserveConfig)
