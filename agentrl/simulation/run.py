"""A whole run in virtual time: the brain of production on simulated edges, with a ledger in memory.

Inside `simulate` only. Everything follows from the configuration, the laws and the seed; nothing is read from a clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random

from agentrl.config.schema import JobConfig
from agentrl.controller.brain import Brain, assemble
from agentrl.controller.config import ScheduleConfig
from agentrl.controller.scheduling.admission import max_live_episodes
from agentrl.inference.config import InferenceConfig
from agentrl.ledger.ledger import Ledger
from agentrl.ledger.reader import LedgerReader
from agentrl.observe.config import ObserveConfig
from agentrl.observe.events import Observer, Observers
from agentrl.rollout.config import AgentConfig, ToolFormat
from agentrl.sandbox.config import SandboxConfig
from agentrl.sandbox.provider import Image, SandboxSpec
from agentrl.simulation.config import Hardware, Workload
from agentrl.simulation.engines import SimulatedEngines
from agentrl.simulation.figures import Figures, of_run
from agentrl.simulation.groups import SimulatedGroups
from agentrl.simulation.life import World
from agentrl.simulation.no_places import NoPlaces
from agentrl.simulation.sandbox import SimulatedProvider
from agentrl.simulation.tongue import SimulatedChat, SimulatedModel
from agentrl.simulation.trainer import SimulatedTrainer, TrainerDisk, probe_of, weights_path
from agentrl.tasks.dataset import Dataset
from agentrl.tasks.task import Task
from agentrl.trainer.config import AlgorithmConfig, TrainerConfig

TASK_FOLDER = Path(__file__).resolve().parent / "task"
_NUM_TASKS = 4096
_NUM_HELDOUT = 32
UNBOUNDED_S = 7 * 86_400.0
"""Deadlines that the reference workload does not have."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is simulated."""

    config: JobConfig
    workload: Workload
    hardware: Hardware
    hygiene: bool = False
    """Sandboxes are health-checked and reaped."""
    routing: bool = True
    """Episodes stay on their engine and wait for room there; otherwise requests go round the engines."""
    engine_start_s: float = 0.0
    """From the start of the run until its engines serve. Figures count from there."""

    @property
    def warm(self) -> bool:
        """Whether sandboxes are started before they are asked for."""
        return self.config.sandbox.warm_max > 0


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """One life of a controller, with its edges."""

    scenario: Scenario
    world: World
    engines: SimulatedEngines
    provider: SimulatedProvider
    trainer: SimulatedTrainer
    brain: Brain

    def figures(self) -> Figures:
        """Of the run so far, all its lives together, but for what earlier lives' engines did."""
        stats = [engine.stats for engine in self.engines.made]
        return of_run(
            LedgerReader.of(self.brain.ledger),
            self.world,
            stats,
            hardware=self.scenario.hardware,
            sandboxes=max_live_episodes(self.scenario.config),
            warm=self.scenario.warm,
            lost=self.provider.lost,
            began_s=self.scenario.engine_start_s,
        )

    async def run(self) -> None:
        """To the last step."""
        try:
            await self.brain.run(self.trainer)
        finally:
            await self.provider.close()


def build(
    scenario: Scenario, ledger: Ledger, *, disk: TrainerDisk | None = None, observer: Observer | None = None
) -> Simulation:
    """Put a run together, new or resumed from its ledger. `disk` is the trainer's, from the run's earlier lives."""
    config, hardware = scenario.config, scenario.hardware
    world = World(scenario.workload, seed=config.seed, hygiene=scenario.hygiene)
    groups = SimulatedGroups()
    engines = SimulatedEngines(
        hardware.engines, hardware.engine, SimulatedModel(world), start_s=scenario.engine_start_s, groups=groups
    )
    provider = SimulatedProvider(
        world,
        starts_at_once=config.sandbox.start_concurrency,
        start_timeout_s=config.sandbox.start_timeout_s,
        max_sandboxes=config.sandbox.max_sandboxes,
    )
    brain = assemble(
        config,
        ledger=ledger,
        observer=observer or Observers(),
        dataset=_dataset(scenario.workload.prompt_tokens),
        start_weights=weights_path(0),
        chat=SimulatedChat(),
        provider=provider,
        engines=engines,
        entropy=Random(f"run/{config.seed}/{ledger.epoch}"),
        places=None if scenario.routing else NoPlaces(),
        probe_of=probe_of,
    )
    trainer = SimulatedTrainer(
        hardware.trainer,
        num_gpus=len(brain.fleet.swing) or hardware.trainer.gpus,
        desk=brain.desk,
        weights_desk=brain.weights_desk,
        groups=groups,
        epoch=ledger.epoch,
        disk=disk or TrainerDisk(),
    )
    return Simulation(scenario=scenario, world=world, engines=engines, provider=provider, trainer=trainer, brain=brain)


def _dataset(prompt_tokens: int) -> Dataset:
    made = tasks(prompt_tokens)
    return Dataset(train=made[_NUM_HELDOUT:], heldout=made[:_NUM_HELDOUT])


@lru_cache(maxsize=4)
def tasks(prompt_tokens: int) -> tuple[Task, ...]:
    """The tasks of a simulated run, each with a prompt of so many tokens."""
    return tuple(
        Task(
            name=f"task-{number:06d}",
            folder=TASK_FOLDER,
            instruction=f"task-{number:06d} {prompt_tokens}",
            spec=SandboxSpec(image=Image()),
            verifier_timeout_s=UNBOUNDED_S,
        )
        for number in range(_NUM_TASKS)
    )


def reference_config(
    workload: Workload, hardware: Hardware, *, seed: int, steps: int, window_groups: int, live: int, warm_max: int = 0
) -> JobConfig:
    """A job for a workload on some hardware: every complete group trains, and no deadline cuts what the laws draw.

    `live` episodes act at once, each in a sandbox of its own. `warm_max` of these may be started ahead.
    """
    return JobConfig(
        seed=seed,
        agent=AgentConfig(
            format=ToolFormat.line,
            max_turns=int(min(workload.turns.cap * workload.turns_growth, 100_000)),
            max_turn_tokens=workload.max_turn_tokens,
            max_episode_tokens=workload.max_episode_tokens,
            tool_timeout_s=UNBOUNDED_S,
            turn_timeout_s=UNBOUNDED_S,
            episode_timeout_s=UNBOUNDED_S,
        ),
        inference=InferenceConfig(num_engines=hardware.engines),
        algorithm=AlgorithmConfig(group_size=workload.group_size),
        schedule=ScheduleConfig(
            steps=steps,
            groups_per_step=workload.groups,
            window_groups=window_groups,
            max_live_episodes=live,
            swing="none",
            max_policy_lag=steps,
            drop_zero_variance=False,
            max_infra_retries=10,
            infra_share_limit=1.0,
            eval_tasks=0,
            stall_timeout_s=UNBOUNDED_S,
        ),
        sandbox=SandboxConfig(
            max_sandboxes=live,
            start_concurrency=hardware.sandbox_starts,
            start_timeout_s=UNBOUNDED_S,
            warm_max=warm_max,
            warm_idle_s=UNBOUNDED_S,
            lifetime_s=UNBOUNDED_S,
        ),
        trainer=TrainerConfig(step_timeout_s=UNBOUNDED_S),
        observe=ObserveConfig(keep_trajectories=2),
    )
