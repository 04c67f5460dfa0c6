"""The status that a kubelet writes, from what it knows of a pod's containers. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .errors import Object
from .store import now_text


@dataclass
class ContainerState:
    """One container as its kubelet knows it."""

    name: str
    image: str
    waiting: tuple[str, str] | None = ("ContainerCreating", "")
    """Reason and message, while it does not run."""
    running_since: str = ""
    terminated: Object | None = None
    last: Object | None = None
    """How it ended before its present run."""
    ready: bool = False
    started: bool = False
    restarts: int = 0
    container_id: str = ""
    image_id: str = ""

    @property
    def state(self) -> Object:
        if self.terminated is not None:
            return {"terminated": self.terminated}
        if self.running_since:
            return {"running": {"startedAt": self.running_since}}
        reason, message = self.waiting or ("ContainerCreating", "")
        return {"waiting": {"reason": reason, **({"message": message} if message else {})}}

    def as_json(self) -> Object:
        shown: Object = {
            "name": self.name,
            "state": self.state,
            "lastState": {"terminated": self.last} if self.last else {},
            "ready": self.ready,
            "restartCount": self.restarts,
            "image": self.image,
            "imageID": self.image_id,
            "started": self.started,
        }
        if self.container_id:
            shown["containerID"] = self.container_id
        return shown


@dataclass
class PodState:
    """What the status of a pod is made of."""

    start_time: str = ""
    host_ip: str = ""
    pod_ip: str = ""
    init: list[ContainerState] = field(default_factory=list)
    main: list[ContainerState] = field(default_factory=list)
    initialized: bool = False
    sandbox_up: bool = False
    failed: tuple[str, str] | None = None
    """Reason and message of a pod that its kubelet has ended itself."""
    disruption: tuple[str, str] | None = None
    """Reason and message of the condition ``DisruptionTarget``."""


def ended(code: int, since: str, container_id: str, *, reason: str = "", message: str = "") -> Object:
    """A terminated state. Without a reason it is Completed for 0 and Error for all else."""
    state: Object = {
        "exitCode": code,
        "reason": reason or ("Completed" if code == 0 else "Error"),
        "startedAt": since or now_text(),
        "finishedAt": now_text(),
    }
    if message:
        state["message"] = message
    if container_id:
        state["containerID"] = container_id
    return state


def phase(pod: Object, state: PodState) -> str:
    """Pending, Running, Succeeded or Failed."""
    if state.failed is not None:
        return "Failed"
    policy = pod["spec"].get("restartPolicy", "Always")
    if not state.initialized:
        over = [one for one in state.init if one.terminated and one.terminated["exitCode"] != 0]
        return "Failed" if over and policy == "Never" else "Pending"
    if any(one.terminated is None and not one.running_since and not one.last for one in state.main):
        return "Pending"
    if policy != "Always" and all(one.terminated is not None for one in state.main):
        codes = [one.terminated["exitCode"] for one in state.main if one.terminated]
        if all(code == 0 for code in codes):
            return "Succeeded"
        if policy == "Never":
            return "Failed"
    return "Running"


def status(pod: Object, state: PodState) -> Object:
    """The whole status, given the one that is stored (its conditions' times are kept)."""
    before = pod.get("status") or {}
    now = phase(pod, state)
    conditions = _conditions(now, state, before.get("conditions") or [])
    made: Object = {
        "phase": now,
        "conditions": conditions,
        "qosClass": before.get("qosClass", "BestEffort"),
        "observedGeneration": pod["metadata"].get("generation", 1),
        "startTime": state.start_time,
        "hostIP": state.host_ip,
        "hostIPs": [{"ip": state.host_ip}],
        "containerStatuses": [one.as_json() for one in state.main],
    }
    if state.init:
        made["initContainerStatuses"] = [one.as_json() for one in state.init]
    if state.sandbox_up:
        made["podIP"] = state.pod_ip
        made["podIPs"] = [{"ip": state.pod_ip}]
    if state.failed is not None:
        made["reason"], made["message"] = state.failed
    return made


def _conditions(now: str, state: PodState, before: list[Object]) -> list[Object]:
    over = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(now)
    not_ready = [one.name for one in state.main if not one.ready]
    message = f"containers with unready status: [{' '.join(not_ready)}]"
    ready: tuple[str, str, str] = ("True", "", "")
    if over:
        ready = ("False", over, "")
    elif not_ready:
        ready = ("False", "ContainersNotReady", message)
    waiting_init = [one.name for one in state.init if not (one.terminated and one.terminated["exitCode"] == 0)]
    initialized: tuple[str, str, str] = ("True", "PodCompleted" if over == "PodCompleted" else "", "")
    if not state.initialized:
        initialized = (
            "False",
            "ContainersNotInitialized",
            f"containers with incomplete status: [{' '.join(waiting_init)}]",
        )
    wanted: dict[str, tuple[str, str, str]] = {
        "PodReadyToStartContainers": ("True" if state.sandbox_up and not over else "False", "", ""),
        "Initialized": initialized,
        "Ready": ready,
        "ContainersReady": ready,
    }
    if state.disruption:
        wanted["DisruptionTarget"] = ("True", *state.disruption)
    kept = [one for one in before if one["type"] not in wanted]
    return [*(_condition(kind, *value, before) for kind, value in wanted.items()), *kept]


def _condition(kind: str, value: str, reason: str, message: str, before: list[Object]) -> Object:
    old = next((one for one in before if one["type"] == kind), None)
    made: Object = {"type": kind, "status": value, "lastProbeTime": None}
    changed = old is None or old["status"] != value
    made["lastTransitionTime"] = now_text() if changed else old["lastTransitionTime"]  # type: ignore[index]
    if reason:
        made["reason"] = reason
    if message:
        made["message"] = message
    return made


def set_condition(thing: Object, kind: str, value: str, reason: str = "", message: str = "") -> None:
    """Write one condition into an object's status (which the caller owns)."""
    conditions: list[Any] = thing.setdefault("status", {}).setdefault("conditions", [])
    made = _condition(kind, value, reason, message, conditions)
    if thing.get("kind") not in ("Pod", "Node"):
        del made["lastProbeTime"]
    thing["status"]["conditions"] = [one for one in conditions if one["type"] != kind] + [made]
