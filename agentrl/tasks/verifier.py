"""Grading: run the task's tests in the sandbox that the agent left, and read what they wrote.

The order is the point: the agent's processes end first, then stale rewards and anything planted in /tests go, and only
then are the tests uploaded. The exit code of a script means nothing; a reward that cannot be read is a problem, not 0,
and so is one below 1 from tests that lacked a tool.
"""

from __future__ import annotations

from pathlib import Path

from agentrl.clock import monotonic
from agentrl.errors import SandboxError
from agentrl.sandbox import offline
from agentrl.sandbox.provider import ExecResult, Sandbox
from agentrl.tasks.rewards import Score, parse_json, parse_pytest, parse_text
from agentrl.tasks.task import LOGS, SOLUTION, TESTS, Grader, RewardSource, Step, Task, Verification
from agentrl.tasks.terminal_bench import script_of

__all__ = ["LOGS", "SOLUTION", "TESTS", "not_started", "prepare_step", "run_oracle", "verify"]

STAND_INS = f"{TESTS}/.agentrl"
"""Hidden, so that no test collects it; beside the tests, because there is space where the agent filled its disk."""

_RUN = """\
[ -d /tmp ] || mkdir -m 1777 /tmp
[ -d "$1" ] || mkdir -p "$1"
cd "$1" || cd /
rm -f pytest.py _pytest.py pluggy.py iniconfig.py
[ "$1" = / ] || rm -f /pytest.ini /.pytest.ini /pytest.toml /.pytest.toml /pyproject.toml /tox.ini /setup.cfg
[ "$1" = / ] || rm -f /conftest.py
if [ -n "$AGENTRL_STAND_INS" ] && ! python3 -I -c 'import pytest' 2>/dev/null; then
  export PYTHONPATH="$AGENTRL_STAND_INS/pytest.zip${PYTHONPATH:+:$PYTHONPATH}"
fi
if [ -x "$2" ]; then exec "$2"; fi
IFS= read -r line < "$2"
case $line in "#!"*) exec ${line#??} "$2" ;; esac
exec "$3" "$2"
"""
"""Run a script in the working folder, by the interpreter that it names, executable or not; with what an agent may have
removed, which shall cost it the reward and not us the verdict; and without what it may have planted where pytest would
load it: above /tests, and by pytest's own name."""

_CLEAN_ENV = {"PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1", "BASH_ENV": "", "ENV": ""}
"""Start-up files in a home that the agent owned are not read."""
_MAX_REWARD_BYTES = 65536
_MAX_SUMMARY_BYTES = 4 << 20
"""Output that is kept where the reward is in it, at the end."""
_ORACLE_TIMEOUT_S = 600.0


async def verify(task: Task, sandbox: Sandbox, step: Step | None = None) -> Verification:
    """Grade the sandbox's state. Raises SandboxError if the sandbox is lost meanwhile."""
    began = monotonic()
    grader = task.grader(step)
    if grader is None:
        return Verification(reward=None, problem="no_tests", started=False, output="", duration_s=0.0)
    env = await _prepare(task, grader, sandbox)
    if isinstance(env, str):
        return not_started(env, duration_s=monotonic() - began)
    by_output = grader.source is RewardSource.PYTEST
    result = await sandbox.exec(
        _script(grader.script, task),
        cwd="/",
        env={**_CLEAN_ENV, "TEST_DIR": TESTS, **env, **grader.env},
        user=grader.user,
        timeout_s=grader.timeout_s,
        max_output_bytes=_MAX_SUMMARY_BYTES if by_output else None,
    )
    missing = await offline.missing(sandbox) if env else ()
    score = await _score(grader, result, sandbox)
    if missing and (score.reward is None or score.reward < 1.0):
        score = Score(problem="missing_tool")
    return Verification(
        reward=score.reward,
        problem=score.problem,
        rewards=score.rewards,
        started=True,
        output=_text(result),
        duration_s=monotonic() - began,
        missing=missing,
    )


def not_started(obstacle: str, *, duration_s: float = 0.0) -> Verification:
    """The verification that could not begin."""
    return Verification(reward=None, problem="not_started", started=False, output=obstacle, duration_s=duration_s)


async def run_oracle(task: Task, sandbox: Sandbox, step: Step | None = None) -> ExecResult | None:
    """Run the task's own solution, or that of one step, as the agent would have acted; None if there is none.

    Raises SandboxError.
    """
    script = task.oracle(step)
    if script is None:
        return None
    path = f"{SOLUTION}/{script.name}"
    if script.suffix == ".yaml":
        path = f"{SOLUTION}/solution.sh"
        await sandbox.write(path, script_of(script).encode())
    elif script.parent.name == "solution":
        await sandbox.upload(script.parent, SOLUTION)
    else:
        await sandbox.upload(script, path)
    env: dict[str, str] = {}
    if offline.needed([script]):
        env = await offline.bring(sandbox, STAND_INS, path=task.spec.image.env.get("PATH"))
    timeout_s = (step.agent_timeout_s if step else None) or task.agent_timeout_s or _ORACLE_TIMEOUT_S
    return await sandbox.exec(_script(path, task), cwd="/", env={**env, **task.solution_env}, timeout_s=timeout_s)


async def prepare_step(task: Task, step: Step, sandbox: Sandbox) -> str | None:
    """Bring a step's files to the working folder and run its workdir/setup.sh. Returns what went wrong.

    Raises SandboxError.
    """
    folder = step.folder / "workdir"
    if not folder.is_dir():
        return None
    workdir = task.spec.image.workdir
    await sandbox.upload(folder, workdir)
    if not (folder / "setup.sh").is_file():
        return None
    result = await sandbox.exec(
        ["sh", "-c", "sh ./setup.sh; code=$?; rm -f ./setup.sh; exit $code"], timeout_s=_ORACLE_TIMEOUT_S
    )
    return None if result.exit_code == 0 else f"the set-up of step {step.name} failed: {_text(result)[-400:]}"


async def _prepare(task: Task, grader: Grader, sandbox: Sandbox) -> dict[str, str] | str:
    """Make the place for grading. Returns the environment of the stand-ins, or what is in the way, like a full disk."""
    await sandbox.kill_all()
    try:
        await sandbox.clear(TESTS)
        await sandbox.clear(LOGS, mode=0o777)
        for source, target in grader.uploads:
            await sandbox.upload(source, target)
        if offline.needed(_scripts(grader)):
            return await offline.bring(sandbox, STAND_INS, path=task.spec.image.env.get("PATH"))
    except SandboxError:
        raise
    except (OSError, ValueError) as error:
        return f"cannot bring the tests in: {error}"
    return {}


def _scripts(grader: Grader) -> list[Path]:
    """Shell scripts of the tests."""
    found: list[Path] = []
    for source, _ in grader.uploads:
        found += [source] if source.is_file() else sorted(source.rglob("*.sh"))
    return found


def _script(path: str, task: Task) -> list[str]:
    """Run a script; one without an interpreter line by bash where Terminal-Bench does."""
    shell = "bash" if task.source is RewardSource.PYTEST else "sh"
    return ["sh", "-c", _RUN, "run", task.spec.image.workdir, path, shell]


async def _score(grader: Grader, result: ExecResult, sandbox: Sandbox) -> Score:
    if result.timed_out:
        return Score(problem="timed_out")
    if grader.source is RewardSource.PYTEST:
        return Score(problem="unreadable") if result.truncated else parse_pytest(result.stdout)
    for name, parse in (("reward.json", parse_json), ("reward.txt", parse_text)):
        try:
            data = await sandbox.read(f"{LOGS}/{name}", max_bytes=_MAX_REWARD_BYTES)
        except ValueError:
            return Score(problem="unreadable")
        if data is not None:
            return parse(data)
    return Score(problem="missing")


def _text(result: ExecResult) -> str:
    return (result.stdout + result.stderr).decode(errors="replace")
