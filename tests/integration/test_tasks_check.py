"""`agentrl tasks check` and `generate`, in real sandboxes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from agentrl.cli import tasks as commands
from agentrl.errors import UserError
from agentrl.tasks.check import check_tasks
from agentrl.tasks.config import Family
from agentrl.tasks.families import FAMILIES, write_tasks
from agentrl.tasks.families.shell_basics import KINDS
from agentrl.tasks.folders import load_tasks
from tests.fixtures.sandboxes import bubblewrap
from tests.fixtures.task_folders import WRITE_ONE, make_task

JUDGE = "#!/bin/sh\n[ -f done ] && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n"

app = typer.Typer()
commands.register(app)


@app.command()
def other() -> None:
    """A second command, so that `tasks` is a group as in `agentrl`."""


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["tasks", *words], catch_exceptions=False)
    return result.exit_code, result.output


@pytest.mark.parametrize(("family", "count"), [(Family.shell_basics, 2 * len(KINDS)), (Family.boxes, 8)])
async def test_every_shipped_task_scores_one_when_solved_and_zero_untouched(
    tmp_path: Path, family: Family, count: int
) -> None:
    write_tasks(FAMILIES[family](count, 11), tmp_path / "tasks")
    async with bubblewrap(tmp_path / "state") as provider:
        results = await check_tasks(load_tasks(tmp_path / "tasks"), provider, 2)
    assert [result for result in results if not result.passed] == []
    assert [(result.oracle, result.noop) for result in results] == [(1.0, 0.0)] * count


def folder_of_all_kinds(folder: Path) -> str:
    solve = "#!/bin/sh\ntouch done\n"
    make_task(folder / "good", test=JUDGE, solve=solve)
    make_task(folder / "generous", test=WRITE_ONE, solve=solve)
    make_task(folder / "impossible", test=JUDGE, solve="#!/bin/sh\necho '[red]no[/tmp]' >&2\n")
    make_task(folder / "silent", test="#!/bin/sh\n", solve=solve)
    make_task(folder / "unsolved", test=JUDGE)
    make_task(folder / "hungry", dockerfile="FROM x\nVOLUME /data\n")
    return str(folder)


def test_json_tells_all_and_a_failure_exits_with_one(tmp_path: Path) -> None:
    code, output = run("check", folder_of_all_kinds(tmp_path / "tasks"), "--json")
    found = {result["task"]: result for result in json.loads(output)}
    assert code == 1
    assert found["good"] == {
        "task": "good",
        "runnable": True,
        "reason": None,
        "malformed": False,
        "oracle": 1.0,
        "noop": 0.0,
        "notes": [],
    }
    assert found["generous"]["reason"] == "doing nothing scores 1, not 0"
    assert found["impossible"]["reason"] == "its solution scores 0, not 1: [red]no[/tmp]"
    assert found["silent"]["reason"] == "doing nothing gives no reward (test.sh: missing), not 0"
    assert found["unsolved"]["reason"].startswith("has no solution/solve.sh")
    assert found["hungry"] == {
        "task": "hungry",
        "runnable": False,
        "reason": "not runnable by the bubblewrap provider: VOLUME /data",
        "malformed": False,
        "oracle": None,
        "noop": None,
        "notes": [],
    }


def test_the_table_is_for_people(tmp_path: Path) -> None:
    code, output = run("check", folder_of_all_kinds(tmp_path / "tasks"))
    words = " ".join(output.split())
    assert code == 1 and "1 ok, 4 failed, 1 skipped" in words
    assert "[red]no" in words and "skipped: not runnable" in words


def test_what_a_run_with_default_settings_leaves_out_is_said(tmp_path: Path) -> None:
    solve = "#!/bin/sh\ntouch done\n"
    toml = "[environment]\nmemory_mb = 1024\nallow_internet = true"
    make_task(tmp_path / "asking", test=JUDGE, solve=solve, toml=toml)
    make_task(tmp_path / "modest", test=JUDGE, solve=solve, toml="[environment]\nmemory_mb = 256")
    code, output = run("check", str(tmp_path), "--json")
    notes = {result["task"]: result["notes"] for result in json.loads(output)}
    assert code == 0 and notes["modest"] == []
    assert notes["asking"][-1] == "left out of a run unless sandbox.memory_mb is 1024 or more and tasks.offline=true"


def test_a_family_s_options_are_refused_for_a_folder(tmp_path: Path) -> None:
    make_task(tmp_path / "good", test=JUDGE)
    with pytest.raises(UserError, match="--count is of a family"):
        run("check", str(tmp_path), "--count", "3")


def test_a_malformed_task_fails_and_the_others_are_checked(tmp_path: Path) -> None:
    make_task(tmp_path / "good", test=JUDGE, solve="#!/bin/sh\ntouch done\n")
    make_task(tmp_path / "bad-toml", toml="[agent\n")
    make_task(tmp_path / "copies-nothing", dockerfile="FROM x\nCOPY nothing.txt /app/\n")
    (make_task(tmp_path / "no-instruction") / "instruction.md").unlink()
    (make_task(tmp_path / "no-test") / "tests" / "test.sh").unlink()
    make_task(tmp_path / "hungry", dockerfile="FROM x\nVOLUME /data\n")
    code, output = run("check", str(tmp_path), "--json")
    found = {result["task"]: result for result in json.loads(output)}
    assert code == 1 and found["good"]["reason"] is None and found["hungry"]["malformed"] is False
    wrong = {name: result["reason"] for name, result in found.items() if result["malformed"]}
    assert not any(found[name]["runnable"] for name in wrong)
    assert sorted(wrong) == ["bad-toml", "copies-nothing", "no-instruction", "no-test"]
    assert "nothing.txt is not in environment/" in wrong["copies-nothing"]
    assert wrong["no-instruction"].endswith("has no instruction.md") and wrong["no-test"].endswith("no tests/test.sh")
    code, output = run("check", str(tmp_path))
    assert code == 1 and "1 ok, 4 failed, 1 skipped" in output


def test_why_a_solution_failed_is_said(tmp_path: Path) -> None:
    make_task(tmp_path / "exits", test=JUDGE, solve="#!/bin/sh\necho oh >&2\nexit 3\n")
    make_task(tmp_path / "slow", test=JUDGE, solve="#!/bin/sh\nsleep 60\n", toml="[agent]\ntimeout_sec = 1")
    broken = "#!/bin/sh\n[ -f done ] || echo 0 > /logs/verifier/reward.txt\n"
    make_task(tmp_path / "unjudged", test=broken, solve="#!/bin/sh\ntouch done\n")
    reasons = {result["task"]: result["reason"] for result in json.loads(run("check", str(tmp_path), "--json")[1])}
    assert reasons == {
        "exits": "its solution scores 0, not 1; solve.sh exited with 3: oh",
        "slow": "its solution scores 0, not 1; solve.sh timed out",
        "unjudged": "its solution gives no reward (test.sh: missing), not 1",
    }


def test_all_well_exits_with_zero(tmp_path: Path) -> None:
    make_task(tmp_path / "good", test=JUDGE, solve="#!/bin/sh\ntouch done\n")
    make_task(tmp_path / "hungry", dockerfile="FROM x\nVOLUME /data\n")
    code, output = run("check", str(tmp_path))
    assert code == 0 and "1 ok, 0 failed, 1 skipped" in output


def test_nothing_that_can_run_exits_with_one(tmp_path: Path) -> None:
    make_task(tmp_path / "hungry", dockerfile="FROM x\nVOLUME /data\n")
    assert run("check", str(tmp_path))[0] == 1


def test_a_family_can_be_checked_by_name() -> None:
    code, output = run("check", "shell-basics", "--count", "3", "--jobs", "1")
    assert code == 0 and "3 ok" in output


def test_neither_folder_nor_family(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"neither a folder nor a family .*boxes, shell_basics"):
        run("check", str(tmp_path / "none"))
    with pytest.raises(UserError, match="holds no task"):
        run("check", str(tmp_path))


def test_generate_writes_a_family_once(tmp_path: Path) -> None:
    code, output = run("generate", "shell_basics", str(tmp_path / "out"), "--count", "5", "--seed", "3")
    assert code == 0 and "5 tasks" in output
    assert len(load_tasks(tmp_path / "out")) == 5
    with pytest.raises(UserError, match="there already"):
        run("generate", "shell_basics", str(tmp_path / "out"))
    with pytest.raises(UserError, match="at most"):
        run("generate", "boxes", str(tmp_path / "many"), "--count", "1000000")
