"""What pods' objects mean, as the API of Kubernetes 1.36 serves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.rollout.evidence import Evidence
from agentrl.rollout.verdict import Cause, Verdict, decide
from agentrl.sandbox.death import Death
from agentrl.sandbox.pods.evidence import end_of, gone, obstacle, running, told_by_events, waiting_for
from agentrl.sandbox.pods.views import PodView

PODS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("pod_objects.json").read_text())

M, X = Verdict.MODEL_FAILURE, Verdict.INFRA_FAILURE
ENDS = {
    "oom_killed": (Death.OUT_OF_MEMORY, M, Cause.SANDBOX_OUT_OF_MEMORY),
    "evicted_for_its_own_disk": (Death.OUT_OF_DISK, M, Cause.SANDBOX_OUT_OF_DISK),
    "evicted_for_its_own_emptydir": (Death.OUT_OF_DISK, M, Cause.SANDBOX_OUT_OF_DISK),
    "evicted_for_the_nodes_memory": (Death.EVICTED, X, Cause.SANDBOX_EVICTED),
    "evicted_by_api": (Death.EVICTED, X, Cause.SANDBOX_EVICTED),
    "preempted": (Death.EVICTED, X, Cause.SANDBOX_EVICTED),
    "deleted_by_taint_manager": (Death.NODE_LOST, X, Cause.SANDBOX_EVICTED),
    "deleted_by_pod_gc": (Death.NODE_LOST, X, Cause.SANDBOX_EVICTED),
    "node_shut_down": (Death.EVICTED, X, Cause.SANDBOX_EVICTED),
    "node_lost": (Death.NODE_LOST, X, Cause.SANDBOX_EVICTED),
    "status_unknown": (Death.NODE_LOST, X, Cause.SANDBOX_EVICTED),
    "deleted": (Death.EVICTED, X, Cause.SANDBOX_EVICTED),
    "deadline_exceeded": (Death.EXPIRED, X, Cause.SANDBOX_EXPIRED),
    "first_process_ended": (Death.ENDED_INSIDE, M, Cause.SANDBOX_ENDED_BY_AGENT),
    "first_process_completed": (Death.ENDED_INSIDE, M, Cause.SANDBOX_ENDED_BY_AGENT),
    "killed_from_outside": (Death.KILLED, X, Cause.SANDBOX_KILLED),
}


@pytest.mark.parametrize("name", ENDS)
def test_an_end_becomes_a_verdict(name: str) -> None:
    death, verdict, cause = ENDS[name]
    end = end_of(PODS[name])
    assert end is not None
    assert end.death is death
    assert end.text and "\n" not in end.text
    assert not running(PODS[name])
    seen = Evidence(sandbox_started=True, sandbox_error=end.text, death=end.death, alive_after=False)
    assert decide(seen) == (verdict, cause)


@pytest.mark.parametrize(
    ("name", "death", "words"),
    [
        ("pull_backoff", Death.IMAGE, "ImagePullBackOff"),
        ("invalid_image", Death.IMAGE, "InvalidImageName"),
        ("config_error", None, "configmap"),
        ("start_error", Death.IMAGE, "no such file"),
        ("oom_killed", None, "OOMKilled"),
    ],
)
def test_what_keeps_a_pod_from_coming_up(name: str, death: Death | None, words: str) -> None:
    found = obstacle(PODS[name])
    assert found is not None
    assert found.death is death
    assert words in found.text


def test_a_pod_that_may_still_come_up_is_waited_for() -> None:
    for name, words in (
        ("unschedulable", "Insufficient memory"),
        ("pulling", "ContainerCreating"),
        ("pull_failed_once", "ErrImagePull"),
    ):
        assert obstacle(PODS[name]) is None
        assert end_of(PODS[name]) is None
        assert not running(PODS[name])
        assert words in waiting_for(PODS[name])


def test_a_running_pod_has_no_end() -> None:
    assert running(PODS["running"])
    assert end_of(PODS["running"]) is None
    assert gone(PODS["running"]).death is Death.EVICTED


def test_the_first_reason_counts_and_what_follows_from_it_does_not() -> None:
    view = PodView("a")
    view.see(PODS["running"])
    assert view.end is None
    view.see(PODS["oom_killed"])
    view.see(PODS["deleted"], is_gone=True)
    assert view.end is not None and view.end.death is Death.OUT_OF_MEMORY


def test_events_are_told_newest_first_and_once() -> None:
    events = [
        {"type": "Normal", "reason": "Scheduled", "message": "x", "lastTimestamp": "2026-11-01T00:00:00Z"},
        {"type": "Warning", "reason": "Failed", "message": "old", "lastTimestamp": "2026-11-01T00:00:01Z"},
        {"type": "Warning", "reason": "BackOff", "message": "new", "lastTimestamp": "2026-11-01T00:00:02Z"},
        {"type": "Warning", "reason": "Failed", "message": "old", "lastTimestamp": "2026-11-01T00:00:00Z"},
    ]
    assert told_by_events(events) == "BackOff: new; Failed: old"
