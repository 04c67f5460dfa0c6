"""Whether tasks can be trusted: their own solution must score 1, doing nothing must score 0."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from agentrl.errors import ImageError, SandboxError, UserError
from agentrl.sandbox import offline
from agentrl.sandbox.provider import ExecResult, SandboxProvider
from agentrl.tasks.folders import Skipped
from agentrl.tasks.harbor import WITHOUT_NETWORK
from agentrl.tasks.rewards import together
from agentrl.tasks.task import Task, Verification
from agentrl.tasks.verifier import not_started, prepare_step, run_oracle, verify

_SHOWN_CHARS = 200


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """What was found about one task."""

    task: str
    runnable: bool
    """False: not tried, because sandboxes of this machine cannot give it what it needs, or its folder is wrong."""
    reason: str | None
    """Why it was skipped, or why it failed; None if all is well."""
    malformed: bool = False
    """Its folder is wrong: this counts as failed, not as skipped."""
    oracle: float | None = None
    """Reward after its own solution; None if there was none."""
    noop: float | None = None
    """Reward after nothing; None if there was none."""
    notes: tuple[str, ...] = ()
    """What it asks for and gets in another way, keys that nobody knows, and what its tests lacked."""

    @property
    def passed(self) -> bool:
        return self.runnable and self.reason is None

    @property
    def failed(self) -> bool:
        return self.malformed or (self.runnable and self.reason is not None)


async def check_tasks(
    tasks: Iterable[Task],
    provider: SandboxProvider,
    concurrency: int,
    *,
    on_result: Callable[[CheckResult], None] = lambda _: None,
) -> list[CheckResult]:
    """Check each task in two fresh sandboxes, `concurrency` tasks at once. Results in the order of `tasks`."""
    turns = asyncio.Semaphore(concurrency)

    async def one(task: Task) -> CheckResult:
        async with turns:
            result = await _check(task, provider)
        on_result(result)
        return result

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(one(task)) for task in tasks]
    return [task.result() for task in running]


def skipped_result(skipped: Skipped) -> CheckResult:
    """The result of a task that was not even tried."""
    return CheckResult(task=skipped.folder.name, runnable=False, reason=skipped.reason)


def malformed_result(found: Skipped) -> CheckResult:
    """The result of a task whose folder is wrong."""
    return CheckResult(task=found.folder.name, runnable=False, reason=found.reason, malformed=True)


async def _check(task: Task, provider: SandboxProvider) -> CheckResult:
    result = CheckResult(task=task.name, runnable=True, reason=None, notes=_notes(task))
    if not all(task.oracle(step) for step in task.steps or (None,)):
        return replace(result, reason=f"has no {task.solution_script} to check it with")
    try:
        await provider.prepare(task.spec.image)
        noop = (await _score(task, provider, solve=False)).found
        solution = await _score(task, provider, solve=True)
    except ImageError as error:
        return replace(result, runnable=False, reason=str(error))
    except (SandboxError, UserError) as error:
        return replace(result, reason=str(error))
    oracle = solution.found
    result = replace(result, oracle=oracle.reward, noop=noop.reward)
    if missing := list(dict.fromkeys((*oracle.missing, *noop.missing))):
        result = replace(result, notes=(*result.notes, f"its tests asked in vain for: {', '.join(missing)}"))
        if "missing_tool" in (oracle.problem, noop.problem):
            return replace(result, runnable=False, reason=f"its tests need what is not here: {', '.join(missing)}")
    reason = _problem("doing nothing", noop, wanted=0.0) or _problem(
        "its solution", oracle, wanted=1.0, solved=solution.ended
    )
    if oracle.reward != 1.0 and solution.lacked:
        return replace(
            result, runnable=False, reason=f"its solution needs what is not here: {', '.join(solution.lacked)}"
        )
    if reason is not None and any(WITHOUT_NETWORK in note for note in task.notes):
        return replace(result, runnable=False, reason=f"asks for a network, and without one {reason}")
    return replace(result, reason=reason)


def _notes(task: Task) -> tuple[str, ...]:
    unknown = f"keys that nobody knows: {', '.join(task.unknown_keys)}"
    return (*task.notes, *([unknown] if task.unknown_keys else []))


@dataclass(frozen=True)
class _Score:
    """What a task's steps came to together."""

    found: Verification
    ended: ExecResult | None
    """How the last solution ended; None without one."""
    lacked: tuple[str, ...]
    """What solutions asked for in vain."""


async def _score(task: Task, provider: SandboxProvider, *, solve: bool) -> _Score:
    sandbox = await provider.create(task.spec)
    graded: list[Verification] = []
    ended: ExecResult | None = None
    lacked: tuple[str, ...] = ()
    try:
        for step in task.steps or (None,):
            if step and (obstacle := await prepare_step(task, step, sandbox)):
                graded.append(not_started(obstacle))
                break
            if solve:
                ended = await run_oracle(task, sandbox, step)
                lacked += await offline.missing(sandbox)
            graded.append(await verify(task, sandbox, step))
            if graded[-1].reward is None or (step and not step.passes(graded[-1])):
                break
    finally:
        await sandbox.close()
    return _Score(together(task, graded), ended, lacked)


def _problem(after: str, found: Verification, *, wanted: float, solved: ExecResult | None = None) -> str | None:
    if found.reward == wanted:
        return None
    got = f"scores {found.reward:g}" if found.reward is not None else f"gives no reward (test.sh: {found.problem})"
    ended = _ended_badly(solved) if solved else None
    said = (found.output + (solved.stderr.decode(errors="replace") if solved else "")).strip()
    tail = f": {said[-_SHOWN_CHARS:]}" if said else ""
    return " ".join(f"{after} {got}, not {wanted:g}{f'; solve.sh {ended}' if ended else ''}{tail}".split())


def _ended_badly(solved: ExecResult) -> str | None:
    """How a solution's script ended, if not well."""
    if solved.timed_out:
        return "timed out"
    if solved.oom:
        return "ran out of memory"
    if solved.signal is not None:
        return f"was killed by signal {solved.signal}"
    return None if solved.exit_code == 0 else f"exited with {solved.exit_code}"
