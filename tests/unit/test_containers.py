"""Which container image a task runs in, and what builds it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentrl.cli.main import app
from agentrl.errors import UserError
from agentrl.sandbox.config import SandboxBackend, SandboxConfig
from agentrl.sandbox.pods.config import PodConfig
from agentrl.tasks.config import Family, TasksConfig
from agentrl.tasks.containers import chosen_image, content_digest, images_of
from agentrl.tasks.dataset import load_dataset
from agentrl.tasks.folders import load_task


def task_folder(path: Path, dockerfile: str | None, *, image: str | None = None) -> Path:
    (path / "environment").mkdir(parents=True)
    (path / "tests").mkdir()
    (path / "tests/test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    (path / "instruction.md").write_text("Do it.\n")
    (path / "task.toml").write_text(f'[environment]\ndocker_image = "{image}"\n' if image else "")
    if dockerfile is not None:
        (path / "environment/Dockerfile").write_text(dockerfile)
        (path / "environment/data").write_text("x")
    return path


BUILT = """FROM rust:1 AS build
WORKDIR /src
RUN cargo build
FROM ubuntu:24.04
RUN apt-get install -y jq
WORKDIR /srv
WORKDIR app
"""


def config(**pods: Any) -> SandboxConfig:
    return SandboxConfig(backend=SandboxBackend.kubernetes, kubernetes=PodConfig(**pods))


def test_a_task_names_its_image(tmp_path: Path) -> None:
    named = load_task(task_folder(tmp_path / "a", BUILT, image="reg/a:1"), containers=True)
    assert (chosen_image(named, config()), named.spec.image.workdir) == ("reg/a:1", "/srv/app")
    alone = load_task(task_folder(tmp_path / "b", None, image="reg/b:1"), containers=True)
    assert (chosen_image(alone, config()), alone.spec.image.workdir) == ("reg/b:1", "")
    copied = load_task(
        task_folder(tmp_path / "c", "FROM debian:12\nWORKDIR /app\nCOPY data /app/data\n"), containers=True
    )
    assert chosen_image(copied, config()) == "debian:12"
    assert [copy.target for copy in copied.spec.image.copies] == ["/app/data"]
    assert chosen_image(copied, config(images={"x*": "no", "c": "reg/c:2"})) == "reg/c:2"
    nothing = load_task(task_folder(tmp_path / "d", None), containers=True)
    assert chosen_image(nothing, config()) == PodConfig().image


def test_a_built_image_is_named_by_what_it_is_built_of(tmp_path: Path) -> None:
    folder = task_folder(tmp_path / "Task_1", BUILT)
    task = load_task(folder, containers=True)
    assert chosen_image(task, config()) is None
    digest = content_digest(folder / "environment")
    name = chosen_image(task, config(registry="reg/rl/"))
    assert name is not None and name.startswith("reg/rl/task-1-") and name.endswith(f":{digest}")
    (image,) = images_of([task, replace(task, name="Task_1")], config(registry="reg/rl"))
    assert image.build_command("podman build --pull") == [
        *("podman", "build", "--pull", "--tag", name, str(folder / "environment"))
    ]
    (folder / "environment/data").chmod(0o700)
    assert content_digest(folder / "environment") != digest


def test_tasks_whose_image_nobody_can_name_are_left_out_with_the_reason(tmp_path: Path) -> None:
    task_folder(tmp_path / "tasks/a", BUILT)
    tasks = TasksConfig(path=str(tmp_path / "tasks"), num_heldout=0)
    with pytest.raises(UserError, match=r"sandbox\.kubernetes\.registry") as caught:
        load_dataset(tasks, workspace=tmp_path, sandbox=config())
    assert "agentrl tasks images" in str(caught.value)
    (task,) = load_dataset(tasks, workspace=tmp_path, sandbox=config(registry="reg")).train
    assert (task.spec.image.reference or "").startswith("reg/a:")


def test_shipped_tasks_need_no_build(tmp_path: Path) -> None:
    for family in (Family.boxes, Family.shell_basics):
        tasks = TasksConfig(family=family, num_train=8, num_heldout=2)
        dataset = load_dataset(tasks, workspace=tmp_path, sandbox=config())
        assert {task.spec.image.reference for task in (*dataset.train, *dataset.heldout)} == {"debian:12-slim"}
        assert not any(task.spec.image.steps for task in dataset.train)


def test_the_command_lists_and_builds(tmp_path: Path) -> None:
    task_folder(tmp_path / "tasks/a", BUILT)
    task_folder(tmp_path / "tasks/b", None, image="reg/b:1")
    runner = CliRunner()
    listed = runner.invoke(app, ["tasks", "images", str(tmp_path / "tasks"), "--registry", "reg", "--json"])
    rows = json.loads(listed.output)
    assert [row["build"] is None for row in rows] == [False, True]
    built = tmp_path / "built"
    script = tmp_path / "builder"
    script.write_text(f'#!/bin/sh\necho "$@" >> {built}\n')
    script.chmod(0o755)
    ran = runner.invoke(
        app, ["tasks", "images", str(tmp_path / "tasks"), "--registry", "reg", "--run", "--builder", f"{script} build"]
    )
    assert ran.exit_code == 0, ran.output
    assert built.read_text() == f"build --tag {rows[0]['image']} {tmp_path / 'tasks/a/environment'}\n"
