"""A job as it would be simulated: its own configuration, with the laws filling in what a configuration cannot know.

The job's counts, limits and deadlines hold; where a law would go beyond them, or says otherwise, that is a note. Only
where the workload's agents are plainly not the job's (its prompt alone is over the job's budget for a whole episode),
the workload's budgets and the hardware's sizes are taken instead, and that is a note too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from agentrl.config.schema import JobConfig
from agentrl.controller.config import num_swing
from agentrl.errors import UserError
from agentrl.inference.config import EngineBackend
from agentrl.rollout.config import ToolFormat
from agentrl.simulation.config import EngineLaw, Hardware, Workload
from agentrl.simulation.laws import LogNormal, Quantiles
from agentrl.simulation.run import UNBOUNDED_S, Scenario

MAX_STEPS, MIN_STEPS = 8, 4
"""Steps that are simulated of a longer run where nobody says how many: the first ones, and some of the steady state."""
_USUAL_TURNS = 20_000
"""Turns of a simulation that takes seconds: jobs of long episodes are simulated for fewer steps."""


@dataclass(frozen=True, kw_only=True)
class SimulatedJob:
    """What is simulated in place of a job, and what a person must know of the difference."""

    scenario: Scenario
    notes: tuple[str, ...]


def usual_workload(config: JobConfig) -> tuple[str, str]:
    """Packaged workload for a job that names none, and why."""
    if config.inference.backend is EngineBackend.embedded:
        return "quickstart", "inference.backend is embedded: a small job on one machine"
    return "w_tb", "inference.backend is not embedded: the reference workload"


def usual_steps(config: JobConfig, workload: Workload) -> int:
    """Steps that show the steady state of a job without taking minutes."""
    turns_per_step = config.schedule.groups_per_step * config.algorithm.group_size * workload.turns.at(0.0)
    return max(MIN_STEPS, min(MAX_STEPS, int(_USUAL_TURNS / turns_per_step)))


def simulated_job(
    config: JobConfig, workload: Workload, hardware: Hardware, *, steps: int | None = None
) -> SimulatedJob:
    """`steps` at most (default `usual_steps`). Raises UserError where laws and configuration cannot be put together."""
    chosen = min(config.schedule.steps, steps or usual_steps(config, workload))
    notes: list[str] = []
    if chosen < config.schedule.steps:
        notes.append(f"{chosen} of {config.schedule.steps} steps are simulated")
    evaluated = min(config.schedule.eval_tasks, config.tasks.num_heldout)
    if evaluated:
        notes.append(f"evaluations on {evaluated} held-out tasks are not simulated")
    job = replace(
        config,
        schedule=replace(config.schedule, steps=chosen, eval_tasks=0),
        agent=replace(config.agent, format=ToolFormat.line),  # what simulated agents speak, at no token's difference
        observe=replace(config.observe, keep_trajectories=2),
    )
    if config.agent.harness.command:
        notes.append("the built-in loop is simulated instead of agent.harness")
    if workload.prompt_tokens >= config.agent.max_episode_tokens:
        notes.append(_other_agents(config, workload))
        job, engine = _with_budgets_of(workload, job), hardware.engine
    else:
        notes += _beyond(config, workload)
        engine = _engine(config, hardware.engine)
    notes += _not_used(config, workload, hardware)
    return SimulatedJob(
        scenario=Scenario(
            config=job,
            workload=msgspec.structs.replace(
                workload,
                groups=config.schedule.groups_per_step,
                group_size=config.algorithm.group_size,
                turns=_at_most(workload.turns, job.agent.max_turns),
                max_turn_tokens=min(workload.max_turn_tokens, job.agent.max_turn_tokens),
                max_episode_tokens=min(workload.max_episode_tokens, job.agent.max_episode_tokens),
            ),
            hardware=msgspec.structs.replace(
                hardware,
                engines=config.inference.num_engines,
                engine=engine,
                trainer=msgspec.structs.replace(hardware.trainer, gpus=config.trainer.world_size),
                sandboxes=config.sandbox.max_sandboxes,
                sandbox_starts=config.sandbox.start_concurrency,
            ),
        ),
        notes=tuple(notes),
    )


def trainer_gpus(config: JobConfig) -> int:
    """GPUs that train: those of the swing engines, or the trainer's own."""
    return num_swing(config.schedule.swing, config.inference.num_engines) or config.trainer.world_size


def _with_budgets_of(workload: Workload, job: JobConfig) -> JobConfig:
    """Episodes as long as the laws make them, and no deadline for them."""
    return replace(
        job,
        agent=replace(
            job.agent,
            max_turns=int(min(workload.turns.cap, 100_000)),
            max_turn_tokens=workload.max_turn_tokens,
            max_episode_tokens=workload.max_episode_tokens,
            tool_timeout_s=UNBOUNDED_S,
            turn_timeout_s=UNBOUNDED_S,
            episode_timeout_s=UNBOUNDED_S,
        ),
        schedule=replace(job.schedule, stall_timeout_s=UNBOUNDED_S),
        sandbox=replace(job.sandbox, start_timeout_s=UNBOUNDED_S, lifetime_s=UNBOUNDED_S),
        trainer=replace(job.trainer, step_timeout_s=UNBOUNDED_S),
    )


def _at_most(law: LogNormal | Quantiles, most: int) -> LogNormal | Quantiles:
    """The law where nothing exceeds `most`: what is drawn is then what the job's limit leaves of it."""
    if isinstance(law, LogNormal):
        return msgspec.structs.replace(law, cap=min(law.cap, most))
    return msgspec.structs.replace(law, values=tuple(min(value, most) for value in law.values))


def _engine(config: JobConfig, law: EngineLaw) -> EngineLaw:
    """The law's speed, the job's sizes."""
    inference = config.inference
    try:
        return msgspec.structs.replace(
            law,
            kv_tokens=inference.max_total_tokens,
            context_tokens=inference.context_length,
            max_running=inference.max_running_requests,
        )
    except ValueError as error:
        raise UserError(f"inference.max_total_tokens {inference.max_total_tokens}: {error}") from error


def _other_agents(config: JobConfig, workload: Workload) -> str:
    return (
        f"this workload's agents are others than the job's: its prompts of {workload.prompt_tokens} tokens exceed "
        f"agent.max_episode_tokens {config.agent.max_episode_tokens}; budgets and deadlines of agents and the size of "
        "an engine are those of the laws, not the job's"
    )


def _beyond(config: JobConfig, workload: Workload) -> list[str]:
    """Limits of the job that the laws would exceed: episodes that do are cut there, and graded as they are."""
    pairs = (
        ("turns up to", workload.turns.cap, "agent.max_turns", config.agent.max_turns),
        ("messages up to", workload.max_turn_tokens, "agent.max_turn_tokens", config.agent.max_turn_tokens),
        ("episodes up to", workload.max_episode_tokens, "agent.max_episode_tokens", config.agent.max_episode_tokens),
    )
    beyond = [f"{what} {law:g} > {key} {limit}" for what, law, key, limit in pairs if law > limit]
    return [f"the laws go beyond the job's limits, which cut them: {', '.join(beyond)}"] if beyond else []


def _not_used(config: JobConfig, workload: Workload, hardware: Hardware) -> list[str]:
    """Numbers of the laws that the job has its own for."""
    pairs = (
        ("groups", workload.groups, config.schedule.groups_per_step),
        ("group_size", workload.group_size, config.algorithm.group_size),
        ("engines", hardware.engines, config.inference.num_engines),
        ("sandboxes", hardware.sandboxes, config.sandbox.max_sandboxes),
        ("sandbox_starts", hardware.sandbox_starts, config.sandbox.start_concurrency),
    )
    others = [f"{name} {job} (laws: {law})" for name, law, job in pairs if law != job]
    return [f"the job's own numbers hold: {', '.join(others)}"] if others else []
