"""The directory of a run: made once, found again, held by one controller."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.config.schema import JobConfig
from agentrl.controller.lifecycle.run_directory import RunDirectory
from agentrl.errors import UserError
from agentrl.model.config import ModelConfig
from agentrl.tasks.config import TasksConfig

CONFIG = JobConfig(seed=7)


def make(runs: Path, name: str | None = None) -> RunDirectory:
    return RunDirectory.create(runs, name, "exp", "seed: 7\n", CONFIG)


def test_runs_without_a_name_are_numbered(tmp_path: Path) -> None:
    assert [make(tmp_path).name for _ in range(3)] == ["exp-001", "exp-002", "exp-003"]


def test_config_of_a_run_is_read_back_as_it_was(tmp_path: Path) -> None:
    run = make(tmp_path)
    assert run.load_config() == CONFIG
    assert run.config_text.read_text() == "seed: 7\n"


def test_name_that_is_taken_is_a_users_mistake(tmp_path: Path) -> None:
    make(tmp_path, "mine")
    with pytest.raises(UserError, match="agentrl resume mine"):
        make(tmp_path, "mine")


def test_folder_that_cannot_be_written_is_a_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cluster\.runs_dir"):
        make(tmp_path / "file" / "runs")


def test_run_is_found_by_name_and_by_path(tmp_path: Path) -> None:
    run = make(tmp_path, "mine")
    assert RunDirectory.find("mine", tmp_path).path == run.path
    assert RunDirectory.find(str(run.path), Path("elsewhere")).path == run.path


def test_unknown_run_lists_the_known_ones(tmp_path: Path) -> None:
    make(tmp_path, "mine")
    with pytest.raises(UserError, match="runs there: mine"):
        RunDirectory.find("other", tmp_path)


def test_config_of_another_version_is_a_users_mistake(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.config.write_text('{"seed": "x"}')
    with pytest.raises(UserError, match="another version"):
        run.load_config()


def test_only_one_controller_holds_a_run(tmp_path: Path) -> None:
    run = make(tmp_path)
    descriptor = run.hold()
    holder = run.holder()
    assert holder is not None
    assert holder.pid == os.getpid()
    with pytest.raises(UserError, match="already controlled"):
        run.hold()
    os.close(descriptor)
    os.close(run.hold())


def test_holder_that_died_and_whose_pid_lives_on_is_nobody(tmp_path: Path) -> None:
    run = make(tmp_path)
    (run.path / "controller.json").write_text(json.dumps({"pid": os.getpid(), "start_ticks": 1}))
    assert run.holder() is None


def test_paths_in_a_runs_config_do_not_depend_on_the_working_directory(tmp_path: Path) -> None:
    config = replace(CONFIG, model=ModelConfig(path="models/m"), tasks=TasksConfig(path="/tasks"))
    run = RunDirectory.create(tmp_path, None, "exp", "", config)
    loaded = run.load_config()
    assert loaded.model.path == str(Path("models/m").absolute())
    assert loaded.tasks.path == "/tasks"
