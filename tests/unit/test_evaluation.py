"""Evaluations apart from a run: which weights, what they can be compared with, whose tokens count, where results go."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.config.changed import changed
from agentrl.config.schema import JobConfig
from agentrl.controller.evaluation.fingerprint import differences, fingerprint
from agentrl.controller.evaluation.session import episode_name, figures_of, proven_tokens
from agentrl.controller.evaluation.subject import find_subject, workplace
from agentrl.controller.evaluation.task_choice import choose
from agentrl.controller.lifecycle.run_directory import RunDirectory
from agentrl.errors import EngineMistrusted, UserError
from agentrl.inference.config import Dtype, EngineBackend
from agentrl.ledger.evaluations import (
    EvaluationLedger,
    EvaluationStart,
    SampleRow,
    read_evaluations,
    read_samples,
)
from agentrl.ledger.ledger import Ledger
from agentrl.ledger.rows import StepRow
from agentrl.model.config import ModelConfig, Recipe
from agentrl.rollout.config import AgentConfig
from agentrl.sandbox.provider import Image, SandboxSpec
from agentrl.tasks.config import Family, TasksConfig
from agentrl.tasks.task import Task
from agentrl.wire import Trajectory


def save_weights(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def make_run(runs: Path, *versions: int) -> RunDirectory:
    """A run that has published these versions."""
    run = RunDirectory.create(runs, "job", "job", "", JobConfig())
    save_weights(run.model)
    ledger = Ledger.take(run.ledger)
    for version in range(1, max(versions, default=0) + 1):
        ledger.assign_batch(StepRow(version, f"b{version}", 0.0, 1.0, 0.5), [], [])
        ledger.apply_step(version, weights_path="", metrics={})
        ledger.publish_step(version)
    ledger.close()
    for version in versions:
        save_weights(run.weights / f"v{version:06d}")
    return run


def test_a_run_stands_for_its_newest_published_weights(tmp_path: Path) -> None:
    run = make_run(tmp_path, 3, 4)
    save_weights(run.weights / "v000005")  # on disk, and no engine has proven it
    subject = find_subject("job", tmp_path, None)
    assert (subject.version, subject.weights) == (4, run.weights / "v000004")
    assert find_subject("job", tmp_path, 0).weights == run.model
    assert subject.ledger.parent == run.path
    for version in (2, 5):
        with pytest.raises(UserError, match="kept: 0, 3, 4"):
            find_subject("job", tmp_path, version)


def test_a_folder_in_a_run_is_of_that_run_and_version(tmp_path: Path) -> None:
    run = make_run(tmp_path, 3)
    inside = find_subject(str(run.weights / "v000003"), tmp_path, None)
    assert (inside.version, inside.run and inside.run.name) == (3, "job")
    apart = find_subject(str(save_weights(tmp_path / "apart")), tmp_path, None)
    assert (apart.version, apart.run, apart.ledger.parent) == (0, None, tmp_path)


def test_weights_stay_for_the_evaluation_when_a_live_run_removes_them(tmp_path: Path) -> None:
    run = make_run(tmp_path, 3)
    with workplace("job", tmp_path, None) as work:
        shutil.rmtree(run.weights)
        assert (work.subject.version, (work.weights / "model.safetensors").read_bytes()) == (3, b"weights")
        with workplace("job", tmp_path, 0):
            assert work.weights.is_dir(), "another evaluation removes nothing that is in use"
    assert list(run.work.iterdir()) == []


def test_what_a_killed_evaluation_left_is_removed_by_the_next(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run.work / "eval-killed").mkdir(parents=True)
    (run.work / "eval-killed" / "lock").touch()
    with workplace("job", tmp_path, None) as work:
        assert [path.name for path in run.work.iterdir()] == [work.place.name]


def test_weights_that_go_while_they_are_linked_give_way_to_newer_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path, 3, 4)
    link = shutil.copytree

    def gone(source: Path, target: Path, **options: Any) -> Any:
        if source.name == "v000004":
            shutil.rmtree(source)
        return link(source, target, **options)

    monkeypatch.setattr(shutil, "copytree", gone)
    with workplace("job", tmp_path, None) as work:
        assert work.subject.version == 3
    with pytest.raises(UserError, match="kept: 0, 3"), workplace("job", tmp_path, 4):
        raise AssertionError("there is nothing to work on")


def make_task(folder: Path, name: str, script: str = "true") -> Task:
    (folder / name / "tests").mkdir(parents=True)
    (folder / name / "tests" / "test.sh").write_text(script)
    return Task(name=name, folder=folder / name, instruction="", spec=SandboxSpec(image=Image()))


def test_what_changes_the_result_changes_the_fingerprint_and_is_named(tmp_path: Path) -> None:
    config = JobConfig()
    weights = save_weights(tmp_path / "weights")
    tasks = [make_task(tmp_path, "a"), make_task(tmp_path, "b")]
    build = {"version": "0.5.23", "quantization": "None"}

    def table(config: JobConfig = config, **changes: object) -> dict[str, str]:
        facts: dict[str, object] = {"greedy": False, "build": build, "tasks": tasks, "weights_folder": weights}
        return fingerprint(config, **(facts | changes))  # type: ignore[arg-type]

    base = table()
    assert differences(base, table(tasks=tasks[::-1])) == []
    assert differences(base, table(replace(config, seed=5))) == []
    assert differences(base, table(build=build | {"quantization": "fp8"})) == ["engine.quantization None -> fp8"]
    assert differences(base, table(build=build | {"version": "0.5.24"})) == ["engine.version 0.5.23 -> 0.5.24"]
    assert differences(base, table(greedy=True)) == ["agent.temperature 1.0 -> 0"]
    hotter = replace(config, agent=AgentConfig(max_turns=3))
    assert differences(base, table(hotter)) == ["agent.max_turns 8 -> 3"]
    (tasks[1].folder / "tests" / "test.sh").write_text("false")
    (weights / "chat_template.jinja").write_text("{{ x }}")
    assert [line.split()[0] for line in differences(base, table())] == ["tasks", "template"]


def trajectory(versions: list[int]) -> Trajectory:
    mask = np.array([version >= 0 for version in versions], dtype=np.uint8)
    zeros = np.zeros(len(versions), dtype=np.float32)
    return Trajectory(
        episode="x",
        group="t",
        task="t",
        reward=1.0,
        ids=zeros.astype(np.int32).tobytes(),
        mask=mask.tobytes(),
        logprobs=zeros.tobytes(),
        versions=np.array(versions, dtype=np.int32).tobytes(),
        num_turns=1,
    )


def test_one_token_of_another_version_is_refused() -> None:
    assert proven_tokens(trajectory([-1, 4, 4, -1, 4]), 4) == 3
    with pytest.raises(EngineMistrusted, match="sampled from version 3, 5, but version 4"):
        proven_tokens(trajectory([-1, 4, 3, -1, 5]), 4)


def test_a_tasks_samples_have_the_same_name_whatever_is_evaluated_with_it() -> None:
    names = [episode_name(task, sample) for task in ("a", "much-longer/name") for sample in (0, 99_999)]
    assert len({len(name) for name in names}) == 1
    assert len(set(names)) == 4


def row(task: str, sample: int, verdict: str) -> SampleRow:
    reward = {"success": 1.0, "model_failure": 0.25}.get(verdict)
    return SampleRow(
        task=task,
        sample=sample,
        verdict=verdict,
        cause="rewarded",
        reward=reward,
        num_turns=1,
        num_sampled=0 if reward is None else 5,
        evidence={},
    )


def test_what_infrastructure_spoilt_counts_nowhere_and_is_counted() -> None:
    rows = [row("a", 0, "success"), row("a", 1, "infra_failure"), row("b", 0, "model_failure"), row("b", 1, "success")]
    figures = figures_of(rows, (1, 2))
    assert figures["pass_at_k"]["1"]["value"] == 0.75
    assert figures["pass_at_k"]["2"]["num_tasks"] == 1
    assert figures["reward"] == pytest.approx((1.0 + 0.625) / 2)
    assert (figures["num_unusable"], figures["num_tokens"]) == (1, 15)


def test_several_processes_write_evaluations_side_by_side(tmp_path: Path) -> None:
    file = tmp_path / "evaluations.sqlite"
    assert read_evaluations(file) == []
    start = EvaluationStart(
        weights="/w", version=3, tasks="heldout", num_tasks=1, num_samples=1, seed=0, fingerprint={"engine": "x"}
    )
    one, other = EvaluationLedger.open(file), EvaluationLedger.open(file)
    first, second = one.begin(start), other.begin(start)
    other.record(second, row("a", 0, "success"))
    one.record(first, row("a", 0, "model_failure"))
    other.end(second, {"reward": 1.0})
    one.close(), other.close()
    unfinished, done = read_evaluations(file)
    assert (unfinished.figures, done.figures, done.start) == (None, {"reward": 1.0}, start)
    assert [sample.verdict for sample in read_samples(file, second)] == ["success"]


def test_an_option_wins_over_the_runs_settings_and_these_hold_where_it_says_nothing() -> None:
    run = replace(JobConfig(), model=ModelConfig(recipe=Recipe.none, path="/m"))
    run = replace(run, inference=replace(run.inference, context_length=160, dtype=Dtype.bfloat16))
    found = changed(run, ["inference=sglang", "agent.max_turns=3"])
    assert found.inference.backend is EngineBackend.sglang
    assert (found.inference.context_length, found.inference.dtype, found.agent.max_turns) == (160, Dtype.bfloat16, 3)
    assert (found.model, changed(run, [])) == (run.model, run)
    with pytest.raises(UserError, match=r"unknown key 'agent\.max_trns'"):
        changed(run, ["agent.max_trns=3"])


def test_tasks_are_a_part_of_the_runs_or_a_family_or_a_folder(tmp_path: Path) -> None:
    own = TasksConfig(family=Family.boxes, num_heldout=4, include=["boxes-*"], branch_from="g1@2")
    assert choose(own, "train", include=None).train
    assert choose(own, "heldout", include=None).tasks == replace(own, branch_from=None)
    assert choose(own, "shell-basics", include=None).tasks.family is Family.shell_basics
    folder = choose(own, str(tmp_path), include=None)
    assert (folder.train, folder.tasks.family, folder.tasks.num_heldout) == (True, Family.none, 0)
    assert (folder.tasks.path, folder.tasks.include) == (str(tmp_path), ["*"])
    with pytest.raises(UserError, match="--tasks: nowhere"):
        choose(own, "nowhere", include=None)
