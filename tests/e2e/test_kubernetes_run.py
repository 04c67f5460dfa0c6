"""A whole run in a cluster: submitted by the command line, trained by pods that are real processes, killed, resumed,
stopped, and nothing left of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fake_kubernetes import FakeCluster, PodLaw, plain_image, project_image, running
from tests.fake_kubernetes.resources import CONFIG_MAPS, PODS

CHECKOUT = Path(__file__).parents[2]
RUN = "job-001"
YAML = """
defaults:
  - agentrl
  - override /model: tiny
  - override /tasks: boxes
  - override /agent: line
  - override /cluster: kubernetes
  - _self_
model: {warmup_steps: 10, warmup_batch: 8}
tasks: {num_train: 4, num_heldout: 1}
agent: {max_turns: 2, max_turn_tokens: 8, max_episode_tokens: 128}
inference: {context_length: 160}
algorithm: {group_size: 2}
schedule:
  {steps: 8, groups_per_step: 1, window_groups: 2, max_live_episodes: 3, drop_zero_variance: false, eval_tasks: 0}
sandbox: {max_sandboxes: 3, warm_max: 1}
trainer: {world_size: 1, lr_warmup_steps: 1}
cluster:
  kubernetes:
    volume: {storage_class: shared, size_gb: 1}
    controller: {cpus: 0.1, memory_mb: 500}
    engine: {cpus: 0.1, memory_mb: 500}
    trainer: {cpus: 0.1, memory_mb: 500}
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    images = [project_image("agentrl/*", CHECKOUT), plain_image("*")]
    with running(tmp_path / "cluster", images=images, law=PodLaw(backoff_s=0.2, watch_interval_s=0.2)) as made:
        yield made


def agentrl(cluster: FakeCluster, *words: str) -> list[str]:
    """Lines that a command prints, which must succeed."""
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig()), "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(
        [sys.executable, "-m", "agentrl", *words], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def has_trained(record: dict[str, Any]) -> bool:
    return json.loads(record["data"].get("overview.json") or "{}").get("step", 0) >= 1


def controllers(cluster: FakeCluster) -> list[str]:
    """Names of the controller's pods."""
    return [
        pod["metadata"]["name"]
        for pod in cluster.objects(PODS, "default")
        if pod["metadata"]["labels"].get("agentrl.dev/role") == "controller"
    ]


@pytest.mark.timeout(400)
def test_run_in_a_cluster_outlives_its_controller_and_leaves_nothing(cluster: FakeCluster, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(YAML)

    agentrl(cluster, "launch", str(file), "--detach")
    cluster.wait(CONFIG_MAPS, f"agentrl-{RUN}", has_trained, timeout_s=300)
    (first,) = controllers(cluster)
    cluster.kill_pod(first)

    lines = agentrl(cluster, "watch", "-k", RUN)
    assert any(line.startswith(f"run {RUN}") and "resumed" in line for line in lines), lines
    assert len(controllers(cluster)) == 2
    (row,) = json.loads("\n".join(agentrl(cluster, "ps", "-k", "--json")))
    assert (row["status"], row["step"], row["steps"]) == ("finished", 8, 8)
    status = json.loads("\n".join(agentrl(cluster, "status", "-k", RUN, "--json")))
    assert status["steps"] == 8
    assert any("finished" in line for line in agentrl(cluster, "logs", "-k", RUN, "-c", "controller", "-n", "100"))

    agentrl(cluster, "stop", "-k", RUN)
    left = [
        (plural, one["metadata"]["name"])
        for plural, one in cluster.everything()
        if one["metadata"].get("labels", {}).get("agentrl.dev/run") == RUN
    ]
    assert left == []
