"""What a pod's object says of a sandbox's end, or of why it does not come up: pure, from the words of the API.

Reasons are those that the kubelet (pkg/kubelet: eviction, kuberuntime, container_manager), the container runtime and
the control plane (DisruptionTarget conditions) of Kubernetes 1.36 write.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from agentrl.sandbox.death import Death

Object: TypeAlias = dict[str, Any]

CONTAINER = "sandbox"
"""Name of the container that commands run in."""
_KILLED = 128 + 9
_OWN_DISK = re.compile(
    r"ephemeral local storage usage exceeds|exceeded its local ephemeral storage limit|Usage of EmptyDir volume"
)
"""Of an eviction's message: the pod went beyond its own limits. A node that is low on resources says so instead."""
_NODE_LOST = ("NodeLost", "NodeShutdown", "Shutdown", "Terminated", "ContainerStatusUnknown")
_DISRUPTIONS = {"DeletionByPodGC": Death.NODE_LOST, "DeletionByTaintManager": Death.NODE_LOST}
"""Reasons of a DisruptionTarget condition that mean a lost node; the others take the pod away."""
_NO_IMAGE = ("ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError", "RegistryUnavailable")
_NO_START = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff")
_NOT_RUNNABLE = ("StartError", "ContainerCannotRun")


@dataclass(frozen=True)
class PodEnd:
    """That a pod is no place for commands any more, and why. `death` None: only that it ended."""

    death: Death | None
    text: str


def end_of(pod: Object) -> PodEnd | None:
    """How the pod ended, or is ending; None while it may live."""
    status, meta = pod.get("status") or {}, pod["metadata"]
    reason, said = str(status.get("reason") or ""), str(status.get("message") or "").strip()
    terminated = _terminated(status)
    if reason == "Evicted" and _OWN_DISK.search(said):
        return PodEnd(Death.OUT_OF_DISK, f"evicted: {said}")
    if terminated.get("reason") == "OOMKilled":
        return PodEnd(Death.OUT_OF_MEMORY, "its memory limit killed it (OOMKilled)")
    if disruption := _condition(status, "DisruptionTarget", "True"):
        why = disruption.get("reason", "")
        return PodEnd(_DISRUPTIONS.get(why, Death.EVICTED), f"{why}: {disruption.get('message') or said}".strip(": "))
    if reason == "DeadlineExceeded":
        return PodEnd(Death.EXPIRED, f"outlived activeDeadlineSeconds: {said}")
    if reason in _NODE_LOST or terminated.get("reason") in _NODE_LOST or status.get("phase") == "Unknown":
        return PodEnd(Death.NODE_LOST, f"its node is lost: {reason or terminated.get('reason') or 'Unknown'} {said}")
    if meta.get("deletionTimestamp"):
        return PodEnd(Death.EVICTED, f"deleted at {meta['deletionTimestamp']}, not by this run")
    if reason:
        return PodEnd(Death.EVICTED, f"{reason}: {said}")
    if terminated:
        return _by_itself(terminated)
    if status.get("phase") in ("Failed", "Succeeded"):
        return PodEnd(None, f"it {status['phase'].lower()}")
    return None


def gone(pod: Object) -> PodEnd:
    """How a pod ended that is no longer there: as it said last, else somebody took it."""
    return end_of(pod) or PodEnd(Death.EVICTED, "deleted, not by this run")


def obstacle(pod: Object) -> PodEnd | None:
    """Why a pod that has not come up will not; None while it may. An image that cannot be pulled once may be later."""
    status = pod.get("status") or {}
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason, said = waiting.get("reason", ""), waiting.get("message", "")
        if reason in _NO_IMAGE:
            return PodEnd(Death.IMAGE, f"{container.get('image', '')}: {reason}: {said}")
        if reason in _NO_START:
            return PodEnd(None, f"{reason}: {said}")
    end = end_of(pod)
    if end is not None and end.death in (Death.ENDED_INSIDE, Death.KILLED, Death.OUT_OF_MEMORY):
        return PodEnd(None, end.text)  # nobody acted in it yet
    return end


def waiting_for(pod: Object | None) -> str:
    """What a pod that is not up yet waits for, for messages."""
    if pod is None:
        return "not seen by the watch"
    status = pod.get("status") or {}
    if unscheduled := _condition(status, "PodScheduled", "False"):
        return f"{unscheduled.get('reason', '')}: {unscheduled.get('message', '')}"
    for container in status.get("containerStatuses") or ():
        if waiting := (container.get("state") or {}).get("waiting"):
            return f"{waiting.get('reason', '')}: {waiting.get('message', '')}".strip(": ")
    return str(status.get("phase") or "Pending")


def running(pod: Object) -> bool:
    """Whether its container runs."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return end_of(pod) is None and any(
        one["name"] == CONTAINER and "running" in (one.get("state") or {}) for one in statuses
    )


def told_by_events(events: Iterable[Object]) -> str:
    """The warnings among a pod's events, for messages: newest first, each once."""
    warnings = [event for event in events if event.get("type") == "Warning"]
    warnings.sort(key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "", reverse=True)
    return "; ".join(dict.fromkeys(f"{event.get('reason')}: {event.get('message')}" for event in warnings))


def _by_itself(terminated: Object) -> PodEnd:
    """Its first process ended with nothing else said. SIGKILL cannot reach it from inside."""
    code, reason = terminated.get("exitCode"), terminated.get("reason", "")
    text = f"its first process ended with {code} ({reason})"
    if reason in _NOT_RUNNABLE:
        return PodEnd(Death.IMAGE, f"{text}: {terminated.get('message', '')}")
    return PodEnd(Death.KILLED if code == _KILLED else Death.ENDED_INSIDE, text)


def _terminated(status: Object) -> Object:
    """How the sandbox's container ended; empty while it has not."""
    for container in status.get("containerStatuses") or ():
        if container["name"] == CONTAINER:
            found: Object = (container.get("state") or {}).get("terminated") or {}
            return found
    return {}


def _condition(status: Object, kind: str, value: str) -> Object | None:
    found = (one for one in status.get("conditions") or () if one.get("type") == kind and one.get("status") == value)
    return next(found, None)
