"""Grading: run the task's tests in the sandbox that the agent left, and read what they wrote.

The order is the point: the agent's processes end first, then stale rewards and anything planted in /tests go, and only
then are the tests uploaded. The exit code of test.sh means nothing; a reward that cannot be read is a problem, not 0.
"""

from __future__ import annotations

import json
import math

from agentrl.clock import monotonic
from agentrl.errors import SandboxError
from agentrl.sandbox.provider import ExecResult, Sandbox
from agentrl.tasks.task import Task, Verification

TESTS, SOLUTION, LOGS = "/tests", "/solution", "/logs/verifier"

_RUN = """\
[ -d /tmp ] || mkdir -m 1777 /tmp
[ -d "$1" ] || mkdir -p "$1"
cd "$1" || cd /
if [ -x "$2" ]; then exec "$2"; else exec sh "$2"; fi
"""
"""Run a script in the working folder, with what an agent may have removed: that shall cost it the reward, not us the
verdict."""
_MAX_REWARD_BYTES = 65536
_ORACLE_TIMEOUT_S = 600.0
_REWARD_KEY = "reward"


async def verify(task: Task, sandbox: Sandbox) -> Verification:
    """Grade the sandbox's state. Raises SandboxError if the sandbox is lost meanwhile."""
    started_at = monotonic()
    if not (task.tests / "test.sh").is_file():
        return Verification(reward=None, problem="no_tests", started=False, output="", duration_s=0.0)
    obstacle = await _prepare(task, sandbox)
    if obstacle is not None:
        return Verification(
            reward=None, problem="not_started", started=False, output=obstacle, duration_s=monotonic() - started_at
        )
    result = await sandbox.exec(
        _script(f"{TESTS}/test.sh", task),
        cwd="/",
        env=task.verifier_env,
        user=task.verifier_user,
        timeout_s=task.verifier_timeout_s,
    )
    reward, problem = (None, "timed_out") if result.timed_out else await _read_reward(sandbox)
    return Verification(
        reward=reward, problem=problem, started=True, output=_text(result), duration_s=monotonic() - started_at
    )


async def run_oracle(task: Task, sandbox: Sandbox) -> ExecResult:
    """Run the task's own solution as the agent would have acted. Raises SandboxError."""
    await sandbox.upload(task.solution, SOLUTION)
    return await sandbox.exec(
        _script(f"{SOLUTION}/solve.sh", task),
        cwd="/",
        env=task.solution_env,
        timeout_s=task.agent_timeout_s or _ORACLE_TIMEOUT_S,
    )


async def _prepare(task: Task, sandbox: Sandbox) -> str | None:
    """Make the place for grading. Returns what is in the way, like a full disk."""
    await sandbox.kill_all()
    try:
        await sandbox.clear(TESTS)
        await sandbox.clear(LOGS, mode=0o777)
        await sandbox.upload(task.tests, TESTS)
    except SandboxError:
        raise
    except (OSError, ValueError) as error:
        return f"cannot bring the tests in: {error}"
    return None


def _script(path: str, task: Task) -> list[str]:
    return ["sh", "-c", _RUN, "run", task.spec.image.workdir, path]


async def _read_reward(sandbox: Sandbox) -> tuple[float | None, str | None]:
    for name, parse in (("reward.json", parse_json), ("reward.txt", parse_text)):
        try:
            data = await sandbox.read(f"{LOGS}/{name}", max_bytes=_MAX_REWARD_BYTES)
        except ValueError:
            return None, "unreadable"
        if data is not None:
            return parse(data)
    return None, "missing"


def parse_json(data: bytes) -> tuple[float | None, str | None]:
    """(reward, problem) of reward.json: a number, or an object with one number or with a number named reward."""
    if not data.strip():
        return None, "empty"
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None, "unreadable"
    if isinstance(value, dict):
        if _REWARD_KEY not in value and len(value) > 1:
            return None, "ambiguous"
        value = value.get(_REWARD_KEY, next(iter(value.values()), None))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None, "not_a_number"
    return _finite(value)


def parse_text(data: bytes) -> tuple[float | None, str | None]:
    """(reward, problem) of reward.txt: one number."""
    text = data.decode(errors="replace").strip()
    if not text:
        return None, "empty"
    try:
        return _finite(float(text))
    except ValueError:
        return None, "not_a_number"


def _finite(value: float) -> tuple[float | None, str | None]:
    try:
        reward = float(value)
    except OverflowError:
        return None, "not_finite"
    return (reward, None) if math.isfinite(reward) else (None, "not_finite")


def _text(result: ExecResult) -> str:
    return (result.stdout + result.stderr).decode(errors="replace")
