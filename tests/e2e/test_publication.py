"""Whole runs by each way in which new weights reach the engines, whoever sends or takes them being killed."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from agentrl.trainer.job import SHARED_MEMORY, shared_memory_notes
from tests.e2e.job import Lab

OVERLAPPED = ["schedule.swing=none", "schedule.max_policy_lag=3", "inference.num_engines=2", "schedule.eval_tasks=0"]


def publications(lab: Lab) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (lab.run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == "published"]


def model_bytes(lab: Lab, version: int) -> int:
    """Of a folder with weights. Raises FileNotFoundError if there are none in it."""
    return (lab.run / "weights" / f"v{version:06d}" / "model.safetensors").stat().st_size


def check(lab: Lab, method: str, steps: int) -> None:
    lab.check_each_group_trained_at_most_once(steps)
    lines = publications(lab)
    assert [(line["version"], line["method"]) for line in lines] == [(v, method) for v in range(1, steps + 1)]
    assert all(line["probe_difference"] < 1e-3 for line in lines if line["engines"])
    assert lab.summary()["publication"]["method"] == method
    assert set(lab.summary()["verdicts"]) <= {"success", "model_failure"}
    assert not list(shared_memory_notes(lab.run).glob("*"))


def test_engines_that_swing_get_weights_from_memory_when_they_come_back(lab: Lab) -> None:
    job = lab.launch("publish=shared", "schedule.steps=3", "schedule.eval_tasks=0")
    assert job.end() == 0, (lab.folder / "stderr.log").read_text()
    check(lab, "shared", 3)
    lines = publications(lab)
    assert [line["engines"] for line in lines] == [1, 1, 1]
    assert all(abs(line["received_bytes"] - model_bytes(lab, 3)) < 0.05 * model_bytes(lab, 3) for line in lines)


def test_only_what_changes_travels(lab: Lab) -> None:
    adapters = ["trainer.lora_rank=2", "trainer.lora_targets=[q_proj]", "publish.delta=true", "schedule.steps=3"]
    job = lab.launch("publish=storage", "publish.storage_every=3", *OVERLAPPED, *adapters)
    assert job.end() == 0, (lab.folder / "stderr.log").read_text()
    check(lab, "storage", 3)
    received = [line["received_bytes"] for line in publications(lab)]
    assert max(received[:2]) < model_bytes(lab, 3) < received[2]


@pytest.mark.parametrize("method", ["direct", "shared"])
def test_whoever_is_killed_the_others_go_on_with_whole_weights(lab: Lab, method: str) -> None:
    """An engine while the trainer trains: the version that is live is in no folder. Then trainer and controller."""
    job = lab.launch(f"publish={method}", "publish.storage_every=3", *OVERLAPPED)
    job.wait_for_phase("training", "step 2")
    kill(job.pids("agentrl.inference.embedded", "engine-1")[0])
    job.wait_for(lambda e: e["event"] == "published" and e["version"] == 2)
    kill(job.pids("-m agentrl.trainer")[-1])
    job.wait_for_phase("publishing", "version 4")
    shared = [SHARED_MEMORY / note.name for note in shared_memory_notes(lab.run).glob("torch_*")]
    job.signal(signal.SIGKILL)
    job.end()
    resumed = lab.resume()
    assert resumed.end() == 0, (lab.folder / "stderr.log").read_text()
    check_resumed(lab, method)
    assert bool(shared) == (method == "shared")
    assert not any(path.exists() for path in shared)


def check_resumed(lab: Lab, method: str) -> None:
    lab.check_each_group_trained_at_most_once(4)
    assert {line["method"] for line in publications(lab)} == {method}
    assert set(lab.summary()["verdicts"]) <= {"success", "model_failure"}
    assert model_bytes(lab, 3) and model_bytes(lab, 4)
    assert not (lab.run / "weights" / "v000002" / "model.safetensors").exists()
    assert not list(shared_memory_notes(lab.run).glob("*"))


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
