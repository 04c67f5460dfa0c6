"""What a role's pods say of it: pure functions of pods as the API serves them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentrl.cluster.kubernetes.site import Object

LOST = -9
"""Exit code of a process whose pod is gone: like one that was killed."""


def exit_code(pods: Iterable[Object], *, expected: int, had: int) -> int | None:
    """Exit code of a role with `expected` pods, of which `had` have been seen at once; None while it runs.

    A container that a StatefulSet's kubelet has restarted has ended all the same: the new one has the arguments of
    then, and nobody has given it today's weights. One pod that fails or is gone ends the role.
    """
    codes = [_pod_exit(pod) for pod in pods]
    failed = next((code for code in codes if code), None)
    if failed is not None:
        return failed
    if len(codes) < had:
        return LOST
    return 0 if len(codes) == expected and all(code == 0 for code in codes) else None


def _pod_exit(pod: Object) -> int | None:
    status = pod.get("status") or {}
    for container in status.get("containerStatuses") or ():
        for state in (container.get("state") or {}, container.get("lastState") or {}):
            if "terminated" in state:
                code = int(state["terminated"].get("exitCode", LOST))
                return code or (LOST if container.get("restartCount") else 0)
    if status.get("phase") == "Failed":  # evicted before a container ran, or its node is lost
        return LOST
    return None


def address(pods: Iterable[Object]) -> str | None:
    """Of the first pod of a role, as it stands in a URL; None before it has one."""
    ips = sorted((_rank(pod), str((pod.get("status") or {}).get("podIP") or "")) for pod in pods)
    if not ips or not ips[0][1]:
        return None
    ip = ips[0][1]
    return f"[{ip}]" if ":" in ip else ip


def _rank(pod: Object) -> int:
    """Place of a pod among those of its role: a LeaderWorkerSet's leader is 0."""
    labels = pod["metadata"].get("labels") or {}
    for name in ("leaderworkerset.sigs.k8s.io/worker-index", "batch.kubernetes.io/job-completion-index"):
        if name in labels:
            return int(labels[name])
    return 0


def plight(pod: Object) -> str | None:
    """Why a pod does not run, in the cluster's own words; None if it does or nothing is said."""
    status = pod.get("status") or {}
    said: list[str] = []
    if status.get("reason"):
        said.append(_words(status))
    for condition in status.get("conditions") or ():
        if condition.get("type") in ("PodScheduled", "DisruptionTarget") and condition.get("reason"):
            bad = (condition["type"] == "DisruptionTarget") == (condition.get("status") == "True")
            said += [_words(condition)] if bad else []
    for container in status.get("containerStatuses") or ():
        for state in (container.get("state") or {}, container.get("lastState") or {}):
            for kind in ("waiting", "terminated"):
                found = state.get(kind) or {}
                if found.get("reason") not in (None, "ContainerCreating", "PodInitializing", "Completed", "Error"):
                    said.append(_words(found))
    return f"{pod['metadata']['name']}: {'; '.join(said)}" if said else None


def _words(found: dict[str, Any]) -> str:
    reason, message = found.get("reason") or "", found.get("message") or ""
    return f"{reason}: {message}" if message else str(reason)
