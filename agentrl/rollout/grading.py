"""Grading with a control: a verifier that gives no reward is tried where the agent never was, before anyone is blamed.

Otherwise an agent could leave a negative reward behind by breaking the verifier (a pipe where a file should be), and a
verifier that is broken by itself would be held against the agent. The control is a fresh sandbox, graded untouched at
the same time of day, so a slow machine shows there too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from agentrl.clock import monotonic, wall
from agentrl.errors import SandboxError
from agentrl.rollout.evidence import StepScore
from agentrl.rollout.watched import WatchedSandbox
from agentrl.sandbox.provider import Sandbox
from agentrl.tasks.task import Step, Task, Verification
from agentrl.tasks.verifier import verify

MAX_CONTROL_WAIT_S = 60.0
"""Until a control goes without a sandbox. Who asks for one keeps its own: where all did, all would wait for ever."""

log = logging.getLogger(__name__)

Fresh = Callable[[], Awaitable[Sandbox]]
"""Starts an untouched sandbox of the same task. Raises SandboxError."""


@dataclass(frozen=True, kw_only=True)
class Grading:
    """What a verifier did, and what was found out where it gave no reward. Fields as in `Evidence`."""

    verification: Verification
    alive_after: bool | None = None
    control: Verification | None = None
    again: Verification | None = None
    clock_jump_s: float = 0.0


async def grade(task: Task, step: Step | None, watched: WatchedSandbox, fresh: Fresh) -> Grading:
    """Grade what an agent left. Raises SandboxError if the sandbox is lost meanwhile."""
    offset = wall() - monotonic()
    verification = await verify(task, watched.sandbox, step)
    grading = Grading(verification=verification, clock_jump_s=wall() - monotonic() - offset)
    if verification.reward is not None:
        return grading
    grading = replace(grading, alive_after=await watched.probe())
    if not grading.alive_after or verification.problem == "missing_tool":
        return grading
    grading = replace(grading, control=await _control(task, step, fresh))
    if grading.control is None or grading.control.reward is None:
        return grading
    return replace(grading, again=await verify(task, watched.sandbox, step))


async def _control(task: Task, step: Step | None, fresh: Fresh) -> Verification | None:
    """The verifier's word on an untouched sandbox; None if none could be had."""
    try:
        async with asyncio.timeout(MAX_CONTROL_WAIT_S):
            sandbox = await fresh()
    except (SandboxError, TimeoutError) as error:
        reason = str(error) or f"none was free for {MAX_CONTROL_WAIT_S:g} s"
        log.warning("no sandbox to try the verifier of %s in: %s", task.name, reason)
        return None
    try:
        return await verify(task, sandbox, step)
    except SandboxError as error:
        log.warning("the sandbox to try the verifier of %s in was lost: %s", task.name, error)
        return None
    finally:
        await close(sandbox)


async def close(sandbox: Sandbox) -> None:
    """Close a sandbox; what is left of it goes when its provider closes."""
    try:
        await sandbox.close()
    except SandboxError as error:
        log.warning("%s", error)


def scores(verifications: list[tuple[Step | None, Verification]]) -> tuple[StepScore, ...]:
    """What each step of several scored; empty for a task of one."""
    return tuple(
        StepScore(step=step.name, reward=verification.reward, problem=verification.problem)
        for step, verification in verifications
        if step is not None
    )
