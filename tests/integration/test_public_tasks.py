"""Task folders in the style of public sets, in sandboxes without a network: oracle 1, no-op 0, or what is missing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.sandbox.config import SandboxConfig
from agentrl.tasks.check import check_tasks
from agentrl.tasks.folders import load_task, scan_tasks
from agentrl.tasks.verifier import verify
from tests.fixtures.public_style import LACKING, SOUND, UVX, WITHOUT_MODES, write_folder
from tests.fixtures.sandboxes import SMALL, bubblewrap


def caching(tmp_path: Path) -> SandboxConfig:
    """Images are built for this test alone."""
    return replace(SMALL, cache_dir=str(tmp_path / "cache"))


async def test_sound_tasks_pass_without_a_network(tmp_path: Path) -> None:
    for name, files in SOUND.items():
        write_folder(tmp_path / "tasks" / name, files)
    for script in write_folder(tmp_path / "tasks" / "without-modes", WITHOUT_MODES).rglob("*.sh"):
        script.chmod(0o644)
    tasks, skipped = scan_tasks(tmp_path / "tasks", offline=True)
    assert skipped == []
    async with bubblewrap(tmp_path / "state", config=caching(tmp_path)) as provider:
        results = {result.task: result for result in await check_tasks(tasks, provider, 2)}
    assert {name: (r.oracle, r.noop, r.reason) for name, r in results.items()} == {
        task.name: (1.0, 0.0, None) for task in tasks
    }
    assert any("allow_internet" in note for note in results["uvx"].notes)
    assert any("mood" in note for note in results["tb1-pip"].notes)


async def test_what_tests_lack_is_said_and_never_scored(tmp_path: Path) -> None:
    for name, files in LACKING.items():
        write_folder(tmp_path / "tasks" / name, files)
    async with bubblewrap(tmp_path / "state", config=caching(tmp_path)) as provider:
        results = {r.task: r for r in await check_tasks(scan_tasks(tmp_path / "tasks", offline=True)[0], provider, 2)}
    said = {name: result.reason for name, result in results.items()}
    assert not any(result.runnable for result in results.values())
    for name in ("lacks-command", "lacks-at-build"):
        assert "apt-get install no-such-tool" in (said[name] or "")
    assert "curl https://example.com/expected.json" in (said["lacks-download"] or "")
    assert "no-such-package-anywhere" in (said["lacks-package"] or "")
    assert said["solution-lacks-clone"] == ("its solution needs what is not here: git https://example.com/totals.git")


async def test_an_agent_cannot_excuse_itself_by_what_its_own_programs_ask_for(tmp_path: Path) -> None:
    """The tests run the agent's program, which asks for a download: its own business, and a reward of 0."""
    test = (
        "#!/bin/bash\ncurl --version >/dev/null\nbash /app/work.sh && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n"
    )
    task = load_task(write_folder(tmp_path / "task", {**UVX, "tests/test.sh": test}), offline=True)
    async with bubblewrap(tmp_path / "state") as provider:
        sandbox = await provider.create(task.spec)
        await sandbox.exec("echo 'curl -f https://example.com/answer' > /app/work.sh", timeout_s=20)
        graded = await verify(task, sandbox)
    assert (graded.reward, graded.missing) == (0.0, ()), graded.output


@pytest.mark.parametrize(
    "plant",
    [
        "printf 'print(1)\\nimport sys; sys.exit(0)\\n' > /app/pytest.py",
        "printf '[pytest]\\naddopts = --co\\n' > /pytest.ini",
        "printf 'import os; os._exit(0)\\n' | tee /conftest.py /app/conftest.py",
        "mkdir -p $HOME/.local/lib/python3.11/site-packages; "
        "printf 'import os; os._exit(0)\\n' > $HOME/.local/lib/python3.11/site-packages/usercustomize.py",
        "cd $HOME; mkdir -p .local/bin; printf '#!/bin/sh\\nexit 0\\n' | tee .local/bin/uvx; chmod +x .local/bin/uvx",
        "mkdir -p $HOME/.local/bin; printf 'uvx() { true; }\\n' > $HOME/.local/bin/env; chmod 0 $HOME/.local/bin/env",
        "printf 'uvx() { true; }\\n' | tee $HOME/.bashrc $HOME/.profile $HOME/.bash_profile",
    ],
)
async def test_what_an_agent_plants_where_tests_look_earns_nothing(tmp_path: Path, plant: str) -> None:
    task = load_task(write_folder(tmp_path / "task", UVX), offline=True)
    async with bubblewrap(tmp_path / "state") as provider:
        sandbox = await provider.create(task.spec)
        await sandbox.exec(plant, timeout_s=20)
        graded = await verify(task, sandbox)
    assert (graded.reward, graded.problem) == (0.0, None), graded.output


def test_the_command_line_says_it_too(tmp_path: Path) -> None:
    import subprocess
    import sys

    write_folder(tmp_path / "uvx", UVX)
    run = [sys.executable, "-m", "agentrl", "tasks", "check", str(tmp_path), "--json"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    (found,) = json.loads(done.stdout)
    assert (done.returncode, found["oracle"], found["noop"], found["reason"]) == (0, 1.0, 0.0, None)
