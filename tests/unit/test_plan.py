"""The plan of a job: processes, arithmetic, deadlines, and the facts read from disk."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from agentrl.config.inspect_job import inspect_job, model_shape
from agentrl.config.lint import LintFacts, Severity
from agentrl.config.plan import CONTROLLER_BYTES, TORCH_BYTES, ModelShape, PlanFacts, plan, run_dir_rule
from agentrl.config.schema import JobConfig
from agentrl.config.tree import from_tree
from agentrl.errors import UserError
from agentrl.tasks.config import Family
from agentrl.tasks.families import FAMILIES, write_tasks

TINY = {"model": {"recipe": "tiny"}, "tasks": {"family": "boxes"}, "agent": {"format": "line"}}


def write_model(folder: Path) -> None:
    folder.mkdir()
    config = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3}
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"a": [10, 20], "b": [5]}
    header = {name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    data = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(data)) + data)


def test_a_recipe_job_has_a_warm_up_before_the_others() -> None:
    made = plan(from_tree(TINY))
    assert [process.role for process in made.processes] == ["controller", "model warm-up", "engine", "trainer rank"]
    assert [process.count for process in made.processes] == [1, 1, 1, 2]
    assert made.findings == ()


def test_a_job_on_a_folder_has_no_warm_up_and_no_guess_about_its_size() -> None:
    made = plan(from_tree({"model": {"path": "m"}, "tasks": {"path": "t"}}))
    assert [process.role for process in made.processes] == ["controller", "engine", "trainer rank"]
    assert made.processes[0].memory_bytes == CONTROLLER_BYTES
    assert made.processes[1].memory_bytes is None


def test_a_router_is_a_process_of_its_own_unless_it_runs_already() -> None:
    inference = {"router": "sglang", "num_engines": 2}
    started = plan(from_tree({**TINY, "inference": inference})).processes
    attached = plan(from_tree({**TINY, "inference": {**inference, "router_url": "http://r:1"}})).processes
    assert [p.command for p in started if p.role == "router"] == ["python -m sglang_router.launch_router"]
    assert [p.command for p in attached if p.role == "router"] == ["attached at http://r:1, not started"]


def test_memory_is_what_can_be_counted() -> None:
    shape = ModelShape(num_parameters=1_000_000, kv_values_per_token=100)
    tree = {"model": {"path": "m"}, "tasks": {"path": "t"}, "inference": {"max_total_tokens": 1000}}
    _, engine, rank = plan(from_tree(tree), PlanFacts(model=shape)).processes
    assert engine.memory_bytes == TORCH_BYTES + 4 * (1_000_000 + 100 * 1000)
    assert rank.memory_bytes == TORCH_BYTES + 16 * 1_000_000 // 2 + 4 * 1_000_000


def test_batch_arithmetic() -> None:
    tree = {
        **TINY,
        "schedule": {"steps": 10, "groups_per_step": 4, "eval_tasks": 50},
        "algorithm": {"group_size": 8},
        "agent": {"max_turns": 4, "max_turn_tokens": 8, "max_episode_tokens": 100},
        "tasks": {"family": "boxes", "num_heldout": 20},
    }
    batch = plan(from_tree(tree)).batch
    assert (batch.episodes_per_step, batch.episodes) == (32, 320)
    assert (batch.max_tokens_per_step, batch.max_sampled_per_step) == (3200, 1024)
    assert batch.eval_episodes == 40


def test_sandboxes_are_no_more_than_live_episodes() -> None:
    made = plan(from_tree({**TINY, "schedule": {"max_live_episodes": 12}}))
    assert (made.sandboxes.count, made.sandboxes.provider) == (12, "bubblewrap")


def test_every_deadline_of_the_schema_is_listed_shortest_first() -> None:
    from agentrl.config.fields import schema

    made = plan(JobConfig())
    seconds = [deadline.seconds for deadline in made.deadlines]
    assert seconds == sorted(seconds)
    expected = {key for key in schema().leaves if key.endswith(("_timeout_s", ".timeout_s", ".lifetime_s"))}
    assert {deadline.key for deadline in made.deadlines} == expected


def test_the_run_directory_is_named_after_the_job_or_the_file() -> None:
    assert run_dir_rule(from_tree({"name": "first"}), "exp") == "runs/first"
    assert run_dir_rule(from_tree({"cluster": {"runs_dir": "out"}}), "exp") == "out/exp-NNN (the next free number)"


def test_lint_findings_are_part_of_the_plan() -> None:
    made = plan(JobConfig())
    assert {finding.rule for finding in made.findings} == {"model_source", "tasks_source"}
    assert all(finding.severity is Severity.ERROR for finding in made.findings)


def test_a_models_shape_is_read_from_its_headers(tmp_path: Path) -> None:
    write_model(tmp_path / "m")
    assert model_shape(tmp_path / "m") == ModelShape(num_parameters=205, kv_values_per_token=2 * 3 * 2 * 16)


def test_a_model_that_cannot_be_read_has_no_shape(tmp_path: Path) -> None:
    assert model_shape(tmp_path / "none") is None
    write_model(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").write_bytes(b"\xff" * 64)
    assert model_shape(tmp_path / "m") is None
    (tmp_path / "m" / "config.json").write_text("[]")
    assert model_shape(tmp_path / "m") is None


def test_facts_about_folders(tmp_path: Path) -> None:
    write_model(tmp_path / "m")
    made = FAMILIES[Family.shell_basics](40, 0)
    write_tasks(made, tmp_path / "t")
    tasks = {"path": str(tmp_path / "t"), "include": ["mkdir*"]}
    num_mkdir = sum(files.name.startswith("mkdir") for files in made)
    facts = inspect_job(from_tree({"model": {"path": str(tmp_path / "m")}, "tasks": tasks}), tmp_path / "exp.yaml")
    assert facts.run_stem == "exp"
    assert facts.model is not None
    assert (facts.lint.num_tasks, facts.lint.model_found, facts.lint.tasks_found) == (num_mkdir, True, True)
    missing = inspect_job(from_tree({"model": {"path": "/none"}, "tasks": {"path": "/none"}}), Path("x.yaml"))
    assert (missing.lint.num_tasks, missing.lint.model_found, missing.lint.tasks_found) == (None, False, False)


def test_a_job_without_folders_has_nothing_to_look_at() -> None:
    facts = inspect_job(from_tree(TINY), Path("exp.yaml"))
    assert facts.model is None
    assert facts.lint == LintFacts(num_cpus=facts.lint.num_cpus)


def test_a_task_that_is_wrong_is_said_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "t" / "broken").mkdir(parents=True)
    (tmp_path / "t" / "broken" / "task.toml").write_text("[")
    with pytest.raises(UserError, match=r"broken"):
        inspect_job(from_tree({"model": {"path": "m"}, "tasks": {"path": str(tmp_path / "t")}}), Path("x.yaml"))
