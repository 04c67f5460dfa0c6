"""Tasks of the real comparison in real sandboxes: each command waits once, the verifier does not, and answers count."""

from __future__ import annotations

from pathlib import Path

from agentrl.bench import waiting_tasks
from agentrl.tasks.folders import load_tasks
from agentrl.tasks.verifier import verify
from tests.fixtures.sandboxes import bubblewrap


async def test_every_command_takes_its_own_wait_and_the_verifier_none(tmp_path: Path) -> None:
    waiting_tasks.write(tmp_path / "tasks", count=12, seed=0)
    tasks = load_tasks(tmp_path / "tasks")
    task = min(tasks, key=lambda one: sum(waiting_tasks.waits(one.name, 0)[:2]))
    waits = waiting_tasks.waits(task.name, 0)
    async with bubblewrap(tmp_path / "state") as provider:
        sandbox = await provider.create(task.spec)
        note = await sandbox.exec("cat note", timeout_s=20)
        named = note.stdout.decode().strip()
        copied = await sandbox.exec(f"cp {named} answer", timeout_s=20)
        assert [note.exit_code, copied.exit_code] == [0, 0]
        assert [note.duration_s >= waits[0], copied.duration_s >= waits[1]] == [True, True]
        assert await sandbox.read("/tmp/.commands") == b"2\n"
        assert (await verify(task, sandbox)).reward == 1.0
        assert await sandbox.read("/tmp/.commands") == b"2\n", "grading is not waited for"
