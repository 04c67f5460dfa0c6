"""Reading Harbor's task folders: what is understood, what is refused, what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.errors import TaskError
from agentrl.tasks.dockerfile import NotRunnable
from agentrl.tasks.folders import Skipped, load_task, load_tasks, scan_tasks
from agentrl.tasks.task import StepRewards
from tests.fixtures.public_style import STEPS, write_folder
from tests.fixtures.task_folders import make_task

EVERYTHING = """
version = "1.0"
artifacts = ["/app/out"]

[task]
name = "org/everything"
description = "d"
authors = []
keywords = ["k"]

[metadata]
anything = {goes = true}

[agent]
timeout_sec = 12.5
user = "agent"
network_mode = "no-network"

[verifier]
timeout_sec = 30
environment_mode = "shared"
collect = []
user = "root"
[verifier.env]
MODE = "${MODE:-strict}"
LEVEL = 3

[environment]
build_timeout_sec = 600
os = "linux"
cpus = 0.5
memory_mb = 256
storage_mb = 64
gpus = 0
gpu_types = []
mcp_servers = []
allowed_hosts = []
workdir = "/srv"
[environment.env]
A = "1"

[solution.env]
HOW = "well"
"""


def test_every_key_is_understood(tmp_path: Path) -> None:
    task = load_task(make_task(tmp_path / "it", toml=EVERYTHING))
    assert (task.name, task.instruction, task.folder) == ("org/everything", "Do it.", tmp_path / "it")
    assert (task.agent_timeout_s, task.agent_user) == (12.5, "agent")
    assert (task.verifier_timeout_s, task.verifier_user) == (30.0, "root")
    assert task.verifier_env == {"MODE": "strict", "LEVEL": "3"}
    assert task.solution_env == {"HOW": "well"}
    spec = task.spec
    assert (spec.cpus, spec.memory_mb, spec.disk_mb) == (0.5, 256, 64)
    assert (spec.image.workdir, spec.image.env) == ("/srv", {"A": "1"})
    assert task.unknown_keys == ()


def test_defaults(tmp_path: Path) -> None:
    task = load_task(make_task(tmp_path / "plain"))
    assert (task.name, task.agent_timeout_s, task.verifier_timeout_s) == ("plain", None, 600.0)
    assert (task.spec.memory_mb, task.spec.disk_mb, task.spec.cpus) == (None, None, None)


def test_unknown_keys_are_kept(tmp_path: Path) -> None:
    toml = '[task]\nmood = 1\n[environment]\nflavour = "x"\n[surprise]\na = 1\n'
    assert load_task(make_task(tmp_path / "t", toml=toml)).unknown_keys == (
        "surprise",
        "task.mood",
        "environment.flavour",
    )


@pytest.mark.parametrize(
    ("text", "mb"), [("2G", 2048), ("512M", 512), ("1.5 GiB", 1536), ("1048576", 1), ("64MB", 64), ("2048K", 2)]
)
def test_legacy_sizes(tmp_path: Path, text: str, mb: int) -> None:
    task = load_task(make_task(tmp_path / "t", toml=f'[environment]\nmemory = "{text}"\nstorage = "{text}"\n'))
    assert (task.spec.memory_mb, task.spec.disk_mb) == (mb, mb)


@pytest.mark.parametrize(
    ("toml", "reason"),
    [
        ('[environment]\ndocker_image = "x:1"', "docker_image"),
        ('[environment]\nnetwork_mode = "public"', "network_mode public"),
        ('[environment]\nnetwork_mode = "allowlist"', "network_mode allowlist"),
        ('[agent]\nnetwork_mode = "public"', "network_mode public"),
        ("[environment]\nallow_internet = true", "allow_internet"),
        ('[environment]\nallowed_hosts = ["a"]', "allowed_hosts"),
        ("[environment]\ngpus = 1", "gpus"),
        ('[environment]\ngpu_types = ["H100"]', "gpu_types"),
        ('[environment]\nos = "windows"', "os windows"),
        ('[[environment.mcp_servers]]\nname = "x"', "mcp_servers"),
        ('[environment.healthcheck]\ncommand = "x"', "healthcheck"),
        ('[verifier]\nenvironment_mode = "separate"', "separate"),
        ('[verifier]\ncollect = ["x"]', "collect"),
        ('[verifier.env]\nKEY = "${API_KEY}"', "API_KEY"),
        ('[environment.env]\nKEY = "${API_KEY}"', "API_KEY"),
        ('[agent]\nuser = "postgres"', "user postgres"),
        ('[[steps]]\nname = "one"\n[steps.healthcheck]\ncommand = "x"', "steps.healthcheck"),
    ],
)
def test_what_cannot_be_given_is_refused_by_name(tmp_path: Path, toml: str, reason: str) -> None:
    with pytest.raises(NotRunnable, match=reason):
        load_task(make_task(tmp_path / "t", toml=toml))


@pytest.mark.parametrize("name", ["docker-compose.yaml", "docker-compose.yml", "compose.yaml"])
def test_services_are_refused(tmp_path: Path, name: str) -> None:
    folder = make_task(tmp_path / "t", files={f"environment/{name}": "services: {}\n"})
    with pytest.raises(NotRunnable, match="services"):
        load_task(folder)


def test_a_compose_file_of_the_container_alone_is_no_obstacle(tmp_path: Path) -> None:
    compose = "services:\n  main:\n    build: {context: .}\n    command: [sleep, infinity]\n"
    assert load_task(make_task(tmp_path / "t", files={"environment/docker-compose.yaml": compose})).name == "t"


@pytest.mark.parametrize("key", ["ports: [80]", "privileged: true", "cap_add: [ALL]", "volumes: ['/:/host']"])
def test_what_a_compose_file_asks_beyond_that_is_refused(tmp_path: Path, key: str) -> None:
    compose = f"services:\n  main:\n    {key}\n"
    with pytest.raises(NotRunnable, match=key.partition(":")[0]):
        load_task(make_task(tmp_path / "t", files={"environment/docker-compose.yaml": compose}))


def test_a_second_service_is_refused_by_name(tmp_path: Path) -> None:
    compose = "services:\n  main: {}\n  database: {image: postgres}\n"
    with pytest.raises(NotRunnable, match="database"):
        load_task(make_task(tmp_path / "t", files={"environment/docker-compose.yaml": compose}))


def test_a_prebuilt_image_is_made_from_its_dockerfile(tmp_path: Path) -> None:
    toml = '[environment]\ndocker_image = "x:1"'
    task = load_task(make_task(tmp_path / "t", toml=toml, dockerfile="FROM x\nWORKDIR /app\n"))
    assert task.spec.image.workdir == "/app" and "docker_image x:1" in task.notes[0]


@pytest.mark.parametrize("asks", ['network_mode = "public"', "allow_internet = true", 'allowed_hosts = ["a"]'])
def test_offline_a_task_that_may_use_a_network_gets_none_and_says_so(tmp_path: Path, asks: str) -> None:
    folder = make_task(tmp_path / "t", toml=f"[environment]\n{asks}")
    with pytest.raises(NotRunnable, match=r"tasks\.offline"):
        load_task(folder)
    (note,) = load_task(folder, offline=True).notes
    assert note.endswith("runs without a network")


def test_steps_are_read_with_their_settings(tmp_path: Path) -> None:
    task = load_task(write_folder(tmp_path / "t", STEPS))
    first, second = task.steps
    assert (task.instruction, task.step_rewards) == ("Write one to one.txt.", StepRewards.MEAN)
    assert (first.agent_timeout_s, first.min_reward) == (30.0, {"reward": 1.0})
    assert (second.verifier_timeout_s, second.verifier_env, second.min_reward) == (
        30.0,
        {"WANT": "two"},
        {"reward": 0.5},
    )
    grader = task.grader(second)
    assert grader is not None and [path.parent.name for path, _ in grader.uploads] == ["t", "second"]
    assert (grader.timeout_s, grader.env) == (30.0, {"WANT": "two"})
    assert task.oracle(second) == second.folder / "solution" / "solve.sh"


def test_step_folders_without_a_list_are_wrong(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="steps"):
        load_task(make_task(tmp_path / "t", files={"steps/one/instruction.md": "x"}))


@pytest.mark.parametrize(
    ("toml", "key"),
    [
        ("[agent]\ntimeout_sec = -1", "agent.timeout_sec"),
        ("[agent]\ntimeout_sec = 0", "agent.timeout_sec"),
        ("[agent]\ntimeout_sec = nan", "agent.timeout_sec"),
        ("[agent]\ntimeout_sec = inf", "agent.timeout_sec"),
        ("[agent]\ntimeout_sec = true", "agent.timeout_sec"),
        ('[verifier]\ntimeout_sec = "10"', "verifier.timeout_sec"),
        ('[environment]\nmemory = "lots"', "environment.memory"),
        ('[environment]\nmemory_mb = "1G"', "environment.memory_mb"),
        ("[environment]\ncpus = 0", "environment.cpus"),
        ('[environment]\nworkdir = "app"', "environment.workdir"),
        ('[environment]\nnetwork_mode = "some"', "environment.network_mode"),
        ("[environment]\nenv = [1]", "environment.env"),
        ("[environment.env]\nA = [1]", "environment.env A"),
        ("agent = 3", "agent"),
        ('multi_step_reward_strategy = "best"', "multi_step_reward_strategy"),
        ('[[steps]]\nname = "../up"', "steps[0].name"),
        ("[[steps]]\nname = 3", "steps[0].name"),
        ("[task]\nname = 3", "task.name"),
    ],
)
def test_a_bad_value_names_file_and_key(tmp_path: Path, toml: str, key: str) -> None:
    with pytest.raises(TaskError) as caught:
        load_task(make_task(tmp_path / "t", toml=toml))
    assert not isinstance(caught.value, NotRunnable)
    assert str(caught.value).startswith(f"{tmp_path / 't' / 'task.toml'}: {key}")
    assert "\n" not in str(caught.value)


def test_a_broken_folder_says_what_is_missing(tmp_path: Path) -> None:
    for missing in ("task.toml", "instruction.md", "tests/test.sh"):
        folder = make_task(tmp_path / missing.replace("/", "-"))
        (folder / missing).unlink()
        with pytest.raises(TaskError, match=missing):
            load_task(folder)
    with pytest.raises(TaskError, match=r"task\.toml.*line 1"):
        load_task(make_task(tmp_path / "syntax", toml="= x"))
    empty = make_task(tmp_path / "empty")
    (empty / "instruction.md").write_text(" \n")
    with pytest.raises(TaskError, match="is empty"):
        load_task(empty)


def test_a_folder_of_tasks_is_read_in_order_and_skips_what_cannot_run(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        make_task(tmp_path / name)
    make_task(tmp_path / "gpu", toml="[environment]\ngpus = 8")
    (tmp_path / "README.md").write_text("not a task")
    (tmp_path / "empty").mkdir()
    tasks, skipped = scan_tasks(tmp_path)
    assert [task.name for task in tasks] == ["a", "b", "c"] == [task.name for task in load_tasks(tmp_path)]
    assert [(s.folder.name, s.reason) for s in skipped] == [
        ("gpu", "not runnable by the bubblewrap provider: environment.gpus")
    ]


def test_a_task_folder_is_itself_a_set_of_one(tmp_path: Path) -> None:
    assert [task.name for task in load_tasks(make_task(tmp_path / "one"))] == ["one"]


def test_names_are_unique(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_task(tmp_path / name, toml='[task]\nname = "same"')
    with pytest.raises(TaskError, match="both are named same"):
        load_tasks(tmp_path)


def test_what_is_wrong_can_be_collected(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_task(tmp_path / name, toml='[task]\nname = "same"')
    make_task(tmp_path / "c", toml="[agent")
    (make_task(tmp_path / "d") / "environment").mkdir()
    (tmp_path / "d" / "environment" / "Dockerfile").write_bytes(b"FROM \xff\n")
    with pytest.raises(TaskError):
        scan_tasks(tmp_path)
    malformed: list[Skipped] = []
    tasks, skipped = scan_tasks(tmp_path, malformed=malformed)
    assert [task.folder.name for task in tasks] == ["a"] and skipped == []
    assert [found.folder.name for found in malformed] == ["b", "c", "d"]
    assert "both are named same" in malformed[0].reason and "task.toml" in malformed[1].reason


def test_no_folder_and_no_task(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="no such folder"):
        load_tasks(tmp_path / "none")
    with pytest.raises(TaskError, match="holds no task"):
        load_tasks(tmp_path)


def test_a_script_with_windows_line_ends_is_named(tmp_path: Path) -> None:
    folder = make_task(tmp_path / "it")
    script = folder / "tests" / "test.sh"
    script.write_bytes(b"#!/bin/sh\r\necho 1 > /logs/verifier/reward.txt\r\n")
    with pytest.raises(TaskError, match=r"tests/test\.sh: has Windows line ends"):
        load_task(folder)
