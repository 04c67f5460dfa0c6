"""The control of a grading, where sandboxes are scarce."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agentrl.clock import monotonic
from agentrl.rollout.grading import MAX_CONTROL_WAIT_S, _control
from agentrl.sandbox.provider import Image, Sandbox, SandboxSpec
from agentrl.simulation.loop import simulate
from agentrl.tasks.task import Task


def test_where_all_keep_a_sandbox_and_wait_for_another_nobody_waits_for_ever(tmp_path: Path) -> None:
    task = Task(name="t", folder=tmp_path, instruction="do it", spec=SandboxSpec(image=Image()))

    async def fresh() -> Sandbox:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def main() -> None:
        began = monotonic()
        assert await _control(task, None, fresh) is None
        assert monotonic() - began == MAX_CONTROL_WAIT_S

    simulate(main(), seed=0, horizon_s=7200)
