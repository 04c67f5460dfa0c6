"""Greedy episodes on tasks that are never trained on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agentrl.ledger.ledger import Ledger
from agentrl.ledger.rows import EvaluationRow
from agentrl.rollout.attempt import EpisodeSpec
from agentrl.rollout.episode import EpisodeRunner
from agentrl.tasks.task import Task

BEFORE, AFTER = "before", "after"
_MARK = "e"
"""First letter of the ids of its episodes; those of training begin with a g."""


def between(version: int) -> str:
    """Label of an evaluation in the middle of a run."""
    return f"step {version}"


def is_evaluation(episode: str) -> bool:
    """Whether an episode of a run is of an evaluation."""
    return episode.startswith(_MARK)


def due(version: int, *, every: int, steps: int) -> bool:
    """Whether a version is evaluated in the middle of the run; the first and the last one are anyway."""
    return every > 0 and 0 < version < steps and version % every == 0


async def evaluate(
    label: str, version: int, tasks: Sequence[Task], *, runner: EpisodeRunner, ledger: Ledger, seed: int, max_live: int
) -> float | None:
    """Act on each task once, greedily; all results are recorded together. Returns the mean reward.

    Episodes that infrastructure spoilt are left out of the mean, and recorded as such. None if nothing was usable.
    """
    slots = asyncio.Semaphore(max_live)

    async def one(index: int, task: Task) -> EvaluationRow:
        # As long as the ids of training episodes (engines match request ids by prefix), and another for every epoch.
        episode = f"{_MARK}{version:06d}.{label[0]}{index:03d}.a{ledger.epoch:02d}"
        async with slots:
            result = await runner.run(EpisodeSpec(episode=episode, group=label, task=task, seed=seed, greedy=True))
        return EvaluationRow(
            label=label,
            version=version,
            episode=episode,
            task=task.name,
            verdict=result.verdict.value,
            reward=result.trajectory.reward if result.trajectory else None,
        )

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(one(index, task)) for index, task in enumerate(tasks)]
    rows = [task.result() for task in running]
    ledger.record_evaluations(rows)
    rewards = [row.reward for row in rows if row.reward is not None]
    return sum(rewards) / len(rewards) if rewards else None
