"""The command line in process: exit codes, one-line errors, output, and that bad input leaves no trace."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from agentrl import __version__
from agentrl.cli.main import main

JOB = """\
defaults:
  - agentrl
  - override /model: tiny
  - override /tasks: boxes
  - override /agent: line
  - _self_
"""


@dataclass
class Result:
    code: int
    out: str
    err: str


class Agentrl:
    """Runs `agentrl` with arguments, in a folder of its own that holds job.yaml."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        (folder / "job.yaml").write_text(JOB)
        monkeypatch.chdir(folder)

    def __call__(self, *arguments: str) -> Result:
        self._monkeypatch.setattr(sys, "argv", ["agentrl", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = self._capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Result(ended.value.code, captured.out, captured.err)

    def files(self) -> set[Path]:
        return set(self.folder.rglob("*"))


@pytest.fixture
def agentrl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Agentrl:
    return Agentrl(tmp_path, monkeypatch, capsys)


BAD_INPUT = [
    (["none.yaml"], "none.yaml: no such file"),
    (["."], "is a folder"),
    (["jop.yaml"], "did you mean"),
    (["job.yaml", "schedule.stpes=5"], "unknown key 'schedule.stpes' (did you mean 'schedule.steps'?)"),
    (["job.yaml", "+trainer.stpes=5"], "unknown key 'trainer.stpes'"),
    (["job.yaml", "schedule.steps=abc"], "schedule.steps: abc is not a whole number >= 1"),
    (["job.yaml", "trainer.lr=nan"], "trainer.lr: nan is not a number > 0"),
    (["job.yaml", "model=tinny"], "has no option 'tinny' (options: folder, smollm2, tiny; did you mean 'tiny'?)"),
    (["job.yaml", "model=folder"], "model.path is missing"),
    (["job.yaml", "tasks.family=bx"], "tasks.family: bx is not an option"),
    (["job.yaml", "hydra.run.dir=x"], "no effect here"),
    (["job.yaml", "name=${nope}"], "cannot be resolved"),
    (["job.yaml", "seed=1,2"], "has several values"),
    (["job.yaml", "two words"], "override 'two words' is not understood"),
    (["job.yaml", "~schedule.steps"], "every setting needs a value"),
    (["job.yaml", "--stpes=5"], "No such option: --stpes"),
    ([], "FILE"),
]


@pytest.mark.parametrize("command", ["show", "plan", "launch"])
@pytest.mark.parametrize(("arguments", "expected"), BAD_INPUT)
def test_bad_input_is_one_line_and_exit_code_2(
    command: str, arguments: list[str], expected: str, agentrl: Agentrl
) -> None:
    before = agentrl.files()
    result = agentrl(command, *arguments)
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    assert expected in result.err
    assert agentrl.files() == before


@pytest.mark.parametrize("command", [["launch"], ["launch", "--dry-run"], ["plan"]])
def test_lint_errors_stop_before_anything_starts(command: list[str], agentrl: Agentrl) -> None:
    before = agentrl.files()
    result = agentrl(*command, "job.yaml", "agent.top_p=0.5")
    assert result.code == 2
    assert "agent.top_p: 0.5 makes log-probs not those of the sampling distribution" in result.out + result.err
    assert agentrl.files() == before


REFUSED = [
    ("cluster.runs_dir=job.yaml/runs", "cluster.runs_dir: cannot write job.yaml/runs: Not a directory"),
    ("sandbox.memory_mb=99999999", "sandbox.memory_mb: one sandbox may take 97656.5 GiB with its disk"),
    ("inference.max_total_tokens=100000000000", "most is for the engine"),
    ("inference=sglang", "inference.sglang.python: no interpreter"),
    ("tasks.num_train=2000000000", "tasks.num_train: boxes: 2000000032 tasks asked for"),
    ("name=taken", "name: run 'taken' exists in runs"),
]


@pytest.mark.parametrize("command", ["launch", "plan"])
@pytest.mark.parametrize(("override", "expected"), REFUSED)
def test_what_this_machine_would_not_start_is_refused_by_plan_and_launch(
    command: str, override: str, expected: str, agentrl: Agentrl
) -> None:
    (agentrl.folder / "runs" / "taken").mkdir(parents=True)
    before = agentrl.files()
    result = agentrl(command, "job.yaml", override)
    assert result.code == 2
    assert expected in result.out + result.err
    assert agentrl.files() == before


def test_an_unknown_command_names_the_nearest(agentrl: Agentrl) -> None:
    result = agentrl("lanch")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "No such command 'lanch'. Did you mean 'launch'" in result.err


def test_no_arguments_and_help_print_the_commands(agentrl: Agentrl) -> None:
    for arguments in ([], ["--help"], ["-h"]):
        result = agentrl(*arguments)
        assert result.code == 0
        assert "launch" in result.out
        assert result.err == ""


def test_a_command_group_alone_prints_its_help(agentrl: Agentrl) -> None:
    result = agentrl("tasks")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("Usage: agentrl tasks")
    assert "check" in result.err


def test_version(agentrl: Agentrl) -> None:
    assert agentrl("--version").out == f"agentrl {__version__}\n"


def test_show_prints_the_resolved_configuration(agentrl: Agentrl) -> None:
    result = agentrl("show", "job.yaml", "schedule.steps=3", "agent.system_prompt='say [red] or [/tmp]'")
    assert result.code == 0
    shown = yaml.safe_load(result.out)
    assert shown["schedule"]["steps"] == 3
    assert shown["tasks"]["family"] == "boxes"
    assert shown["agent"]["system_prompt"] == "say [red] or [/tmp]"
    assert json.loads(agentrl("show", "job.yaml", "schedule.steps=3", "--json").out)["schedule"] == shown["schedule"]


def test_overrides_reach_hydra_untouched(agentrl: Agentrl) -> None:
    overrides = ["~observe", "+name=a", "++seed=5", "agent.system_prompt='a = b, ~c +d'", "tasks.include=[x, y]"]
    shown = json.loads(agentrl("show", "--json", "job.yaml", *overrides).out)
    assert (shown["name"], shown["seed"]) == ("a", 5)
    assert shown["agent"]["system_prompt"] == "a = b, ~c +d"
    assert shown["tasks"]["include"] == ["x", "y"]


def test_show_defaults_lists_the_files_in_order(agentrl: Agentrl) -> None:
    out = agentrl("show", "job.yaml", "--defaults").out
    assert out.index("agentrl_schema") < out.index("model/tiny") < out.index(str(agentrl.folder / "job.yaml"))
    rows = json.loads(agentrl("show", "job.yaml", "--defaults", "--json").out)
    assert rows[-1] == {
        "name": "job",
        "sets": "everything",
        "origin": "user",
        "file": str(agentrl.folder / "job.yaml"),
    }


def test_show_schema_says_what_each_setting_means(agentrl: Agentrl) -> None:
    out = agentrl("show", "--schema").out
    assert "schedule.steps: a whole number >= 1 (default: 25)\n    Training steps of the run.\n" in out
    assert "    - boxes: " in out
    entries = json.loads(agentrl("show", "--schema", "--json").out)
    assert {"key", "expects", "default", "doc", "options"} == set(entries[0])
    assert [entry["key"] for entry in entries if not entry["doc"]] == []
    assert [entry["key"] for entry in entries if not all(entry["options"].values())] == []


def test_show_refuses_two_things_at_once(agentrl: Agentrl) -> None:
    assert agentrl("show", "job.yaml", "--schema", "--defaults").code == 2


def test_plan_prints_processes_arithmetic_and_findings(agentrl: Agentrl) -> None:
    before = agentrl.files()
    result = agentrl("plan", "job.yaml", "schedule.min_usable=1", "cluster.runs_dir='[red]/[/x]'")
    assert result.code == 0
    assert "8 groups x 16 = 128 episodes" in result.out
    assert "run in   [red]/[/x]/job-NNN" in result.out
    assert "warning" in result.out
    assert "[group_has_baseline]" in result.out
    assert agentrl.files() == before


def test_plan_for_machines(agentrl: Agentrl) -> None:
    result = agentrl("plan", "job.yaml", "--json", "agent.top_p=0.5")
    assert result.code == 2
    made = json.loads(result.out)
    assert [finding["rule"] for finding in made["findings"]] == ["sampling_filters"]
    assert made["batch"]["episodes_per_step"] == 128
    assert {process["role"] for process in made["processes"]} == {
        "controller",
        "model warm-up",
        "engine",
        "trainer rank",
    }


def test_dry_run_is_plan(agentrl: Agentrl) -> None:
    assert agentrl("launch", "job.yaml", "--dry-run").out == agentrl("plan", "job.yaml").out


def test_errors_of_the_run_have_exit_code_1(agentrl: Agentrl, monkeypatch: pytest.MonkeyPatch) -> None:
    from agentrl.config import compose
    from agentrl.errors import EngineError

    def broken(*_: object) -> None:
        raise EngineError("engine-0 did not\nanswer", hint="see its log")

    monkeypatch.setattr(compose, "load", broken)
    result = agentrl("show", "job.yaml")
    assert (result.code, result.err) == (1, "error: engine-0 did not answer (see its log)\n")


def test_debug_shows_the_traceback(agentrl: Agentrl, monkeypatch: pytest.MonkeyPatch) -> None:
    from agentrl.errors import UserError

    monkeypatch.setenv("AGENTRL_DEBUG", "1")
    monkeypatch.setattr(sys, "argv", ["agentrl", "show", "none.yaml"])
    with pytest.raises(UserError):
        main()


def test_tasks_for_a_folder_that_cannot_be_written_are_one_line(agentrl: Agentrl) -> None:
    (agentrl.folder / "file").write_text("")
    for target in ("/proc/x", "file/x", "file/x/y"):
        result = agentrl("tasks", "generate", "boxes", target, "--count", "1")
        assert result.code == 2 and result.out == ""
        assert f"{target}: cannot be written: " in result.err and result.err.count("\n") == 1
