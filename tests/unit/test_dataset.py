"""The tasks of a run: made once, filtered, split, and what is said when there are not enough."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.errors import UserError
from agentrl.sandbox.config import SandboxConfig
from agentrl.tasks.config import Family, TasksConfig
from agentrl.tasks.dataset import Dataset, load_dataset, within_limits
from agentrl.tasks.folders import load_tasks
from tests.fixtures.task_folders import make_task


def names(tasks: tuple[object, ...]) -> list[str]:
    return [task.name for task in tasks]  # type: ignore[attr-defined]


def folder_of(tmp_path: Path, num: int) -> str:
    for index in range(num):
        make_task(tmp_path / "tasks" / f"task-{index:02d}")
    return str(tmp_path / "tasks")


def test_a_family_gives_what_is_asked_for(tmp_path: Path) -> None:
    config = TasksConfig(family=Family.shell_basics, num_train=10, num_heldout=5)
    dataset = load_dataset(config, workspace=tmp_path)
    assert (len(dataset.train), len(dataset.heldout)) == (10, 5)
    assert not set(names(dataset.train)) & set(names(dataset.heldout))
    assert all(task.folder.is_relative_to(tmp_path) for task in dataset.train)


def test_a_family_is_made_once(tmp_path: Path) -> None:
    config = TasksConfig(family=Family.boxes, num_train=4, num_heldout=2)
    first = load_dataset(config, workspace=tmp_path)
    stamps = [path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*"))]
    assert load_dataset(config, workspace=tmp_path) == first
    assert [path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*"))] == stamps


def test_patterns_choose_kinds_of_a_family(tmp_path: Path) -> None:
    include = ["mkdir-[0-9]*", "rename-*"]
    config = TasksConfig(family=Family.shell_basics, include=include, num_train=40, num_heldout=8)
    dataset = load_dataset(config, workspace=tmp_path)
    kinds = {name.rpartition("-")[0] for name in names(dataset.train + dataset.heldout)}
    assert kinds == {"mkdir", "rename"} and len(dataset.train) == 40


def test_a_path_is_split_by_the_seed(tmp_path: Path) -> None:
    path = folder_of(tmp_path, 12)
    one = load_dataset(TasksConfig(path=path, num_heldout=4, seed=1), workspace=tmp_path)
    again = load_dataset(TasksConfig(path=path, num_heldout=4, seed=1), workspace=tmp_path)
    other = load_dataset(TasksConfig(path=path, num_heldout=4, seed=2), workspace=tmp_path)
    assert one == again and names(one.heldout) != names(other.heldout)
    assert sorted(names(one.train + one.heldout)) == [f"task-{index:02d}" for index in range(12)]
    assert (len(one.train), len(one.heldout)) == (8, 4)


def test_skipped_folders_are_told(tmp_path: Path) -> None:
    path = folder_of(tmp_path, 3)
    make_task(tmp_path / "tasks" / "needs-gpu", toml="[environment]\ngpus = 1")
    dataset = load_dataset(TasksConfig(path=path, num_heldout=1), workspace=tmp_path)
    assert [skipped.folder.name for skipped in dataset.skipped] == ["needs-gpu"]


def test_no_such_path_names_the_nearest(tmp_path: Path) -> None:
    folder_of(tmp_path, 1)
    with pytest.raises(UserError, match=r"task: no such folder \(did you mean .*/tasks\?\)"):
        load_dataset(TasksConfig(path=str(tmp_path / "task")), workspace=tmp_path)


def test_a_path_without_a_task(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no task"):
        load_dataset(TasksConfig(path=str(tmp_path)), workspace=tmp_path)


def test_a_path_of_tasks_that_cannot_run(tmp_path: Path) -> None:
    make_task(tmp_path / "tasks" / "a", toml="[environment]\ngpus = 1")
    with pytest.raises(UserError, match=r"none of its tasks can run here \(first: .*gpus"):
        load_dataset(TasksConfig(path=str(tmp_path / "tasks")), workspace=tmp_path)


def test_a_wrong_task_is_the_users_error(tmp_path: Path) -> None:
    make_task(tmp_path / "tasks" / "a", toml="[agent]\ntimeout_sec = 0")
    with pytest.raises(UserError, match=r"agent\.timeout_sec"):
        load_dataset(TasksConfig(path=str(tmp_path / "tasks")), workspace=tmp_path)


def test_patterns_that_match_nothing_name_the_nearest(tmp_path: Path) -> None:
    path = folder_of(tmp_path, 3)
    with pytest.raises(UserError, match=r"no task matches tsk-01 \(a task is named task-01\)"):
        load_dataset(TasksConfig(path=path, include=["tsk-01"]), workspace=tmp_path)
    with pytest.raises(UserError, match=r"no task matches mkdri-\* \(a task is named mkdir-"):
        load_dataset(TasksConfig(family=Family.shell_basics, include=["mkdri-*"]), workspace=tmp_path)


def test_fewer_than_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"3 tasks, of which tasks\.num_heldout takes 3"):
        load_dataset(TasksConfig(path=folder_of(tmp_path, 3), num_heldout=3), workspace=tmp_path)
    config = TasksConfig(family=Family.shell_basics, include=["mkdir-000"])
    with pytest.raises(UserError, match="only 1 tasks of shell_basics match, 96 are asked for"):
        load_dataset(config, workspace=tmp_path)


def test_neither_and_both(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither a family nor a path"):
        load_dataset(TasksConfig(), workspace=tmp_path)
    with pytest.raises(UserError, match="leave one out"):
        load_dataset(TasksConfig(family=Family.boxes, path="x"), workspace=tmp_path)


def test_a_task_that_asks_for_more_than_a_sandbox_gets_is_left_out_and_said(tmp_path: Path) -> None:
    make_task(tmp_path / "big", toml='[environment]\nmemory = "2G"\nstorage_mb = 4096')
    make_task(tmp_path / "small", toml="[environment]\nmemory_mb = 256")
    loaded = load_dataset(TasksConfig(path=str(tmp_path), num_heldout=0), workspace=tmp_path / "w")
    dataset = within_limits(loaded, SandboxConfig(memory_mb=512, disk_mb=128))
    assert names(dataset.train) == ["small"]
    asked = "asks for memory_mb 2048 (sandbox.memory_mb is 512) and disk_mb 4096 (sandbox.disk_mb is 128)"
    assert [skipped.reason for skipped in dataset.skipped] == [asked]
    assert len(within_limits(loaded, SandboxConfig(memory_mb=2048, disk_mb=4096)).train) == 2
    with pytest.raises(UserError, match="none can run here: the first asks for memory_mb"):
        within_limits(loaded, SandboxConfig(memory_mb=128, disk_mb=64))


def test_what_is_left_is_said_where_only_held_out_tasks_can_run(tmp_path: Path) -> None:
    for name in ("a", "b", "small"):
        make_task(tmp_path / name, toml=f"[environment]\nmemory_mb = {256 if name == 'small' else 2048}")
    tasks = {task.name: task for task in load_tasks(tmp_path)}
    dataset = Dataset(train=(tasks["a"], tasks["b"]), heldout=(tasks["small"],))
    with pytest.raises(UserError) as refused:
        within_limits(dataset, SandboxConfig(memory_mb=512))
    assert "none of the 2 for training can run here, 1 that are held out can" in str(refused.value)
    assert refused.value.hint == "set sandbox.memory_mb to 2048, or lower tasks.num_heldout"


def test_tasks_that_may_use_a_network_are_left_out_unless_they_shall_do_without(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_task(tmp_path / name, toml="[environment]\nallow_internet = true")
    make_task(tmp_path / "c")
    config = TasksConfig(path=str(tmp_path), num_heldout=0)
    refusing = load_dataset(config, workspace=tmp_path / "w")
    assert [task.name for task in refusing.train] == ["c"] and len(refusing.skipped) == 2
    assert len(load_dataset(replace(config, offline=True), workspace=tmp_path / "w").train) == 3
    with pytest.raises(UserError, match=r"tasks\.offline"):
        load_dataset(TasksConfig(family=Family.boxes, offline=True), workspace=tmp_path / "w")
