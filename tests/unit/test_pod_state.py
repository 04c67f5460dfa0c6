"""What pods say of the process that they are: its end, its address, and why it does not run."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.cluster.kubernetes.pod_state import LOST, address, exit_code, plight


def pod(
    phase: str = "Running", *, labels: dict[str, str] | None = None, ip: str = "", **container: Any
) -> dict[str, Any]:
    status: dict[str, Any] = {"phase": phase, "podIP": ip}
    if container:
        status["containerStatuses"] = [container]
    return {"metadata": {"name": "p", "labels": labels or {}}, "status": status}


def ended(code: int, **more: Any) -> dict[str, Any]:
    return {"state": {"terminated": {"exitCode": code, **more}}, "restartCount": 0}


@pytest.mark.parametrize(
    ("pods", "expected", "had", "code"),
    [
        ([], 1, 0, None),
        ([pod()], 1, 1, None),
        ([pod("Succeeded", **ended(0))], 1, 1, 0),
        ([pod("Succeeded", **ended(0)), pod()], 2, 2, None),
        ([pod("Succeeded", **ended(0))], 2, 1, None),
        ([pod("Failed", **ended(3)), pod()], 2, 2, 3),
        ([pod("Failed")], 1, 1, LOST),
        ([], 1, 1, LOST),
        ([pod(state={"running": {}}, lastState={"terminated": {"exitCode": 137}}, restartCount=1)], 1, 1, 137),
        ([pod(state={"running": {}}, lastState={"terminated": {"exitCode": 0}}, restartCount=1)], 1, 1, LOST),
    ],
)
def test_a_process_ends_with_its_first_pod_that_fails_or_is_gone(
    pods: list[dict[str, Any]], expected: int, had: int, code: int | None
) -> None:
    assert exit_code(pods, expected=expected, had=had) == code


def test_a_process_is_reached_at_its_first_pod() -> None:
    worker = {"leaderworkerset.sigs.k8s.io/worker-index": "1"}
    leader = {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
    assert address([]) is None
    assert address([pod()]) is None
    assert address([pod(ip="10.0.0.2", labels=worker), pod(ip="10.0.0.1", labels=leader)]) == "10.0.0.1"
    assert address([pod(ip="fd00::1")]) == "[fd00::1]"


def test_why_a_pod_does_not_run_is_told_in_the_clusters_words() -> None:
    unscheduled = pod("Pending")
    unscheduled["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
    ]
    assert plight(unscheduled) == "p: Unschedulable: 0/3 nodes are available"
    waiting = pod("Pending", state={"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}})
    assert plight(waiting) == "p: ImagePullBackOff: no such image"
    assert plight(pod("Failed", **ended(137, reason="OOMKilled"))) == "p: OOMKilled"
    assert plight(pod("Pending", state={"waiting": {"reason": "ContainerCreating"}})) is None
    assert plight(pod()) is None
