"""The installed command as real processes: what it imports, pipes, interrupts, the shell's completion."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.config.schema import JobConfig
from agentrl.controller.lifecycle.run_directory import RunDirectory
from agentrl.ledger.ledger import Ledger

AGENTRL = Path(sys.executable).parent / "agentrl"
REPOSITORY = Path(__file__).parents[2]
HEAVY = {"torch", "transformers", "hydra", "omegaconf", "kubernetes", "aiohttp", "rich", "numpy", "yaml", "asyncio"}


def run(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [AGENTRL, *arguments], cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False
    )


def imported(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has after `code`."""
    probe = f"import sys\n{code}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    return set(subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout.split())


def test_help_imports_nothing_heavy() -> None:
    code = "sys.argv = ['agentrl', '--help']\nfrom agentrl.cli.main import main\ntry: main()\nexcept SystemExit: pass"
    assert imported(code) & HEAVY == set()


def test_the_schema_lint_plan_and_completion_need_neither_hydra_nor_torch() -> None:
    code = "import agentrl.config.schema, agentrl.config.plan, agentrl.config.lint_rules, agentrl.config.complete"
    assert imported(code) & {"hydra", "omegaconf", "torch", "aiohttp"} == set()


def test_composing_does_not_import_torch() -> None:
    file = str(REPOSITORY / "conf" / "exp.yaml")
    code = f"from pathlib import Path\nfrom agentrl.config.compose import load\nload(Path({file!r}))"
    assert imported(code) & {"torch", "transformers", "kubernetes", "aiohttp"} == set()


def test_a_mistake_is_one_line_without_a_traceback(tmp_path: Path) -> None:
    result = run("show", "none.yaml", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: none.yaml: no such file\n"
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_where_it_came_from(tmp_path: Path) -> None:
    result = run("show", "none.yaml", cwd=tmp_path, env={"AGENTRL_DEBUG": "1"})
    assert "Traceback" in result.stderr
    assert "UserError: none.yaml: no such file" in result.stderr


def test_the_experiments_can_be_shown_from_anywhere(tmp_path: Path) -> None:
    for name in ("exp", "smollm2"):
        result = run("show", str(REPOSITORY / "conf" / f"{name}.yaml"), cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert result.stderr == ""


def test_a_closed_pipe_is_no_crash(tmp_path: Path) -> None:
    command = f"{AGENTRL} show --schema | head -n 1"
    result = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (result.stdout.count("\n"), result.stderr) == (1, "")


@pytest.mark.parametrize("words", ["show --schema", "--help", "ps", "doctor"])
def test_output_that_nobody_reads_ends_a_command_as_sigpipe_would(words: str, tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run([AGENTRL, *words.split()], cwd=tmp_path, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_stop_records_that_a_run_without_controller_has_stopped(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path, "job", "job", "", JobConfig())
    ledger = Ledger.take(directory.ledger)
    ledger.set_meta("status", "running")
    ledger.close()
    assert "lost its controller" in run("ps", "--runs-dir", str(tmp_path), cwd=tmp_path).stdout
    stopped = run("stop", "job", "--runs-dir", str(tmp_path), cwd=tmp_path)
    assert (stopped.returncode, stopped.stdout) == (0, "job had lost its controller and is stopped now\n")
    assert run("ps", "--runs-dir", str(tmp_path), cwd=tmp_path).stdout.split()[-6:-5] == ["stopped"]
    assert "nothing was left over" in run("stop", "job", "--runs-dir", str(tmp_path), cwd=tmp_path).stdout


def test_ctrl_c_ends_quietly_with_130(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path, "job", "job", "", JobConfig())
    holding = directory.hold()
    directory.logs.mkdir()
    (directory.logs / "trainer.log").write_text("hello\n")
    # A background job of a shell ignores SIGINT, and hands that on: the command must begin as from a terminal.
    command = ["env", "--default-signal=INT", AGENTRL, "logs", "job", "--follow", "--runs-dir", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "trainer | hello\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate() == ("", "")
    assert process.returncode == 130
    os.close(holding)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sh"], ["show"]),
        (["show", "job.yaml", "model", "=", "ti"], ["tiny"]),
        (["show", "job.yaml", "model", "="], ["folder", "smollm2", "tiny"]),
        (["plan", "job.yaml", "schedule.step"], ["schedule.steps="]),
        (["launch", "job.yaml", "seed", "=", "3", "tasks.family", "=", "b"], ["boxes"]),
        (["launch", "job.yaml", "~model", "+obs"], ["+observe.", "+observe="]),
    ],
)
def test_bash_completes_overrides(words: list[str], expected: list[str], tmp_path: Path) -> None:
    script = f"""
        PATH={AGENTRL.parent}:$PATH
        eval "$(_AGENTRL_COMPLETE=source_bash agentrl)"
        COMP_WORDS=(agentrl "$@"); COMP_CWORD=$#
        $(complete -p agentrl | sed 's/.*-F \\([^ ]*\\).*/\\1/') agentrl
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    result = subprocess.run(
        ["bash", "-c", script, "_", *words], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == expected
