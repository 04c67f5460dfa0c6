"""Boxes tasks in real sandboxes: doing nothing scores 0, the solution 1, and demonstrations say what a shell says."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from agentrl.rollout.observation import observe
from agentrl.sandbox.provider import SandboxProvider
from agentrl.tasks.check import check_tasks
from agentrl.tasks.families import boxes, write_tasks
from agentrl.tasks.folders import load_tasks
from agentrl.tasks.task import Task
from agentrl.tasks.verifier import verify
from tests.fixtures.sandboxes import bubblewrap


@pytest.fixture
def tasks(tmp_path: Path) -> list[Task]:
    write_tasks(boxes.generate(6, seed=0), tmp_path / "boxes")
    return load_tasks(tmp_path / "boxes")


async def test_solution_scores_one_and_doing_nothing_zero(tmp_path: Path, tasks: list[Task]) -> None:
    async with bubblewrap(tmp_path / "state") as provider:
        results = await check_tasks(tasks, provider, concurrency=2)
    assert [(result.oracle, result.noop, result.reason) for result in results] == [(1.0, 0.0, None)] * 6


async def act(provider: SandboxProvider, task: Task, commands: list[str]) -> tuple[list[str], float | None]:
    """What an agent is shown after each command, and the reward in the end."""
    sandbox = await provider.create(task.spec)
    results = [await sandbox.exec(command, timeout_s=20) for command in commands]
    shown = [observe(result, limit_chars=200, timeout_s=20) for result in results]
    return shown, (await verify(task, sandbox)).reward


async def test_demonstrations_show_what_a_sandbox_shows(tmp_path: Path, tasks: list[Task]) -> None:
    dialogues = {str(d): d for d in boxes.demonstrations(Random(0), 200, hasty_share=0.5)}.values()
    careful = [d for d in dialogues if d[1][1] == "cat note"]
    async with bubblewrap(tmp_path / "state") as provider:
        for task in tasks[:3]:
            named = (task.folder / "environment/files/note").read_text().strip()
            dialogue = next(d for d in careful if d[2][1] == named)
            commands = [text for role, text in dialogue if role == "assistant" and text != "done"]
            assert await act(provider, task, commands) == ([text for _, text in dialogue[2:-1:2]], 1.0)


async def test_another_box_scores_zero(tmp_path: Path, tasks: list[Task]) -> None:
    named = (tasks[0].folder / "environment/files/note").read_text().strip()
    async with bubblewrap(tmp_path / "state") as provider:
        for box in set(boxes.NAMES) - {named}:
            assert await act(provider, tasks[0], [f"cp {box} answer"]) == ([boxes.NO_OUTPUT], 0.0)
