"""Grading in real sandboxes: what an agent left behind cannot decide the outcome, and a lost reward is never a 0."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from agentrl.errors import SandboxError
from agentrl.sandbox.provider import Sandbox
from agentrl.tasks.folders import load_task
from agentrl.tasks.task import Task, Verification
from agentrl.tasks.verifier import run_oracle, verify
from tests.fixtures.sandboxes import bubblewrap
from tests.fixtures.task_folders import WRITE_ONE, make_task

JUDGE = """\
#!/bin/sh
reward=0
[ "$(cat answer 2>/dev/null)" = 42 ] && reward=1
echo "$reward" > /logs/verifier/reward.txt
"""

Grade = Callable[..., Awaitable[Verification]]


@pytest.fixture
async def grade(tmp_path: Path) -> AsyncIterator[Grade]:
    """Grade what `agent` (a script) left, by `test`."""
    async with bubblewrap(tmp_path / "state") as provider:

        async def run(
            agent: str = "true", *, test: str = JUDGE, toml: str = "", solve: str | None = None
        ) -> Verification:
            folder = make_task(
                tmp_path / "task", toml=toml, test=test, solve=solve, dockerfile="FROM x\nWORKDIR /app\n"
            )
            task = load_task(folder)
            sandbox = await provider.create(task.spec)
            try:
                if solve is not None:
                    await run_oracle(task, sandbox)
                await sandbox.exec(agent, timeout_s=20)
                return await verify(task, sandbox)
            finally:
                await sandbox.close()

        yield run


async def test_right_and_wrong(grade: Grade) -> None:
    right = await grade("echo 42 > answer")
    assert (right.reward, right.problem, right.started) == (1.0, None, True)
    assert right.duration_s > 0
    assert (await grade("echo 41 > answer")).reward == 0.0
    assert (await grade()).reward == 0.0


async def test_the_oracle_has_its_environment(grade: Grade) -> None:
    toml = '[solution.env]\nANSWER = "42"\n'
    assert (await grade(solve='#!/bin/sh\necho "$ANSWER" > answer\n', toml=toml)).reward == 1.0


async def test_json_goes_before_text(grade: Grade) -> None:
    test = "#!/bin/sh\necho 1 > /logs/verifier/reward.txt; echo '{\"reward\": 0.25}' > /logs/verifier/reward.json\n"
    assert (await grade(test=test)).reward == 0.25


async def test_the_exit_code_means_nothing(grade: Grade) -> None:
    assert (await grade(test=f"{WRITE_ONE}exit 7\n")).reward == 1.0
    assert (await grade(test="#!/bin/sh\nexit 0\n")).problem == "missing"


async def test_a_script_without_mode_or_interpreter_line_runs(grade: Grade) -> None:
    assert (await grade(test="echo 1 > /logs/verifier/reward.txt\n")).reward == 1.0


async def test_output_is_kept(grade: Grade) -> None:
    graded = await grade(test=f"{WRITE_ONE}echo out; echo err >&2\n")
    assert "out" in graded.output and "err" in graded.output


@pytest.mark.parametrize(
    ("write", "problem"),
    [
        (":", "missing"),
        ("> /logs/verifier/reward.txt", "empty"),
        ("echo nan > /logs/verifier/reward.txt", "not_finite"),
        ("echo passed > /logs/verifier/reward.txt", "not_a_number"),
        ("mkdir /logs/verifier/reward.txt", "missing"),
        ("echo '{' > /logs/verifier/reward.json", "unreadable"),
        ('echo \'{"a": 1, "b": 2}\' > /logs/verifier/reward.json', "ambiguous"),
        ("head -c 100000 /dev/zero > /logs/verifier/reward.txt", "unreadable"),
        ("exec /no/such/program", "missing"),
        ("kill -9 $$", "missing"),
    ],
)
async def test_a_reward_that_cannot_be_read_is_a_problem(grade: Grade, write: str, problem: str) -> None:
    graded = await grade(test=f"#!/bin/sh\n{write}\n")
    assert (graded.reward, graded.problem, graded.started) == (None, problem, True)


async def test_a_verifier_that_hangs_is_a_problem_whatever_it_wrote(grade: Grade) -> None:
    graded = await grade(test=f"{WRITE_ONE}sleep 60\n", toml="[verifier]\ntimeout_sec = 0.5\n")
    assert (graded.reward, graded.problem, graded.started) == (None, "timed_out", True)


@pytest.mark.parametrize(
    "agent",
    [
        "echo 1 > /logs/verifier/reward.txt; echo 1 > /logs/verifier/reward.json",
        "rm -rf /logs/verifier; ln -s /app /logs/verifier; echo 1 > /app/reward.json",
        "rm -rf /logs/verifier; echo 1 > /logs/verifier",
        "mkdir -p /logs/verifier/reward.json; chmod 0 /logs/verifier",
        "setsid -f sh -c 'while :; do echo 1 > /logs/verifier/reward.json; done' >/dev/null 2>&1",
        "printf '#!/bin/sh\\necho 1 > /logs/verifier/reward.json\\n' > /tests/test.sh; chmod +x /tests/test.sh",
        "echo 'echo 1 > /logs/verifier/reward.json' > /root/.bashrc; cp /root/.bashrc /root/.profile",
        "mkdir -p /usr/local/bin; printf '#!/bin/sh\\necho 42\\n' > /usr/local/bin/cat; chmod +x /usr/local/bin/cat",
        "printf '#!/bin/sh\\necho 42\\n' > cat; chmod +x cat; export PATH=/app:$PATH; alias cat='echo 42'",
        "rm -rf /tests /logs /tmp /app /bin /lib /lib64; mv /bin /was; mv /lib64 /was64; true",
        "rm -rf /* 2>/dev/null; true",
        "cd /; rm -rf /app; echo file > /app",
        "mkdir -p /tests/$(printf 'd/%.0s' $(seq 200)); touch /tests/conftest.py",
        "for d in /app /dev/shm /tmp; do head -c 100M /dev/zero > $d/fill; done",
        "for d in /logs /logs/* /tests /; do head -c 100M /dev/zero > $d/fill; done",
        "kill -9 -1",
        "passwd=$(cat /etc/passwd); echo 'root:x:1000:1000::/app:/bin/false' > /etc/passwd; rm /etc/group",
    ],
)
async def test_an_agents_tricks_and_ruins_score_nothing(grade: Grade, agent: str) -> None:
    graded = await grade(agent)
    assert (graded.reward, graded.problem) == (0.0, None), graded.output


async def test_the_tests_are_not_there_before(grade: Grade) -> None:
    agent = "(ls -A /tests; ls -A /solution) > found; [ -s found ] && echo 42 > answer"
    assert (await grade(agent)).reward == 0.0


async def test_no_tests(tmp_path: Path, grade: Grade) -> None:
    task = load_task(make_task(tmp_path / "other"))
    (tmp_path / "other/tests/test.sh").unlink()
    async with bubblewrap(tmp_path / "no_tests") as provider:
        sandbox = await provider.create(task.spec)
        assert (await verify(task, sandbox)).problem == "no_tests"


async def test_tests_that_do_not_fit_are_a_problem(tmp_path: Path) -> None:
    folder = make_task(tmp_path / "large", files={"tests/data": "x" * (40 << 20)})
    graded = await _verify(load_task(folder), tmp_path)
    assert (graded.reward, graded.problem, graded.started) == (None, "not_started", False)
    assert "No space left" in graded.output


async def _verify(task: Task, tmp_path: Path) -> Verification:
    async with bubblewrap(tmp_path / "state") as provider:
        return await verify(task, await provider.create(task.spec))


async def test_another_user_can_grade(grade: Grade) -> None:
    toml = '[verifier]\nuser = "agent"\n[verifier.env]\nWANT = "1000"\n'
    test = '#!/bin/sh\n[ "$(id -u)" = "$WANT" ] && echo 1 > /logs/verifier/reward.txt\n'
    assert (await grade(test=test, toml=toml)).reward == 1.0


async def test_a_lost_sandbox_is_not_a_reward(tmp_path: Path) -> None:
    task = load_task(make_task(tmp_path / "task"))
    async with bubblewrap(tmp_path / "state") as provider:
        sandbox: Sandbox = await provider.create(task.spec)
        await sandbox.close()
        with pytest.raises(SandboxError):
            await verify(task, sandbox)
