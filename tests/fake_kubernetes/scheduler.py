"""Which node a pod goes to, what keeps it from every one, and who must go for it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable

from .admission import pod_resources
from .api import Api, DeleteOptions
from .errors import Object
from .events import Recorder
from .law import PodLaw, draw
from .pod_status import set_condition
from .resources import CLAIMS, NODES, PODS
from .store import Change, Store
from .validation import quantity

Resources = dict[str, float]


class Scheduler:
    """Binds pods as soon as a node has room; knows what is taken without counting anew."""

    def __init__(self, api: Api, recorder: Recorder, law: Callable[[], PodLaw]) -> None:
        self._api = api
        self._store: Store = api.store
        self._recorder = recorder
        self._law = law
        self._chance = random.Random(0)
        self._waiting: dict[str, Object] = {}
        self._taken: dict[str, tuple[str, Resources]] = {}
        self._used: dict[str, Resources] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        self._due = False

    def see(self, change: Change) -> None:
        """Called after every change in the store."""
        if change.resource == PODS:
            pod, uid = change.thing, change.thing["metadata"]["uid"]
            over = change.type == "DELETED" or pod["status"]["phase"] in ("Succeeded", "Failed")
            if over:
                self._waiting.pop(uid, None)
                self._free(uid)
            elif pod["spec"].get("nodeName"):
                self._waiting.pop(uid, None)
                self._take(uid, pod)
            elif uid in self._waiting:
                self._waiting[uid] = pod
            elif change.type == "ADDED":
                self._later(draw(self._law().schedule_s, self._chance), uid, pod)
        elif change.resource in (NODES, CLAIMS):
            self._soon()

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._waiting.clear()

    def _later(self, seconds: float, uid: str, pod: Object) -> None:
        def come() -> None:
            self._timers.discard(timer)
            found = self._store.find(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"])
            if found is not None and found["metadata"]["uid"] == uid:
                self._waiting[uid] = found
                self._soon()

        timer = asyncio.get_running_loop().call_later(seconds, come)
        self._timers.add(timer)

    def _take(self, uid: str, pod: Object) -> None:
        if uid not in self._taken:
            asked = {**pod_resources(pod["spec"]), "pods": 1.0}
            node = pod["spec"]["nodeName"]
            self._taken[uid] = (node, asked)
            used = self._used.setdefault(node, {})
            for what, amount in asked.items():
                used[what] = used.get(what, 0.0) + amount

    def _free(self, uid: str) -> None:
        if uid in self._taken:
            node, asked = self._taken.pop(uid)
            for what, amount in asked.items():
                self._used[node][what] -= amount
            self._soon()

    def _soon(self) -> None:
        if not self._due and self._waiting:
            self._due = True
            asyncio.get_running_loop().call_soon(self._schedule)

    def _schedule(self) -> None:
        self._due = False
        waiting = sorted(self._waiting.values(), key=lambda pod: -pod["spec"].get("priority", 0))
        for pod in waiting:
            if pod["spec"].get("schedulingGates"):
                self._tell(pod, "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates")
            else:
                self._place(pod)

    def _place(self, pod: Object) -> None:
        meta, nodes = pod["metadata"], self._store.all(NODES)
        if missing := self._missing_claim(pod):
            self._refuse(pod, f'persistentvolumeclaim "{missing}" not found')
            return
        asked = {**pod_resources(pod["spec"]), "pods": 1.0}
        reasons: Counter[str] = Counter()
        fitting = []
        for node in nodes:
            found = unfit(pod, node) or self._lacking(asked, node)
            reasons.update(found)
            if not found:
                fitting.append(node)
        if not fitting:
            said = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
            victims = self._preempt(pod, asked, nodes)
            more = "No preemption victims found for incoming pod" if not victims else "preempting"
            message = (
                f"0/{len(nodes)} nodes are available: {said or 'no nodes available to schedule pods'}. "
                f"preemption: 0/{len(nodes)} nodes are available: {len(nodes)} {more}."
            )
            self._refuse(pod, message)
            return
        node = min(fitting, key=lambda one: self._used.get(one["metadata"]["name"], {}).get("pods", 0.0))
        name = node["metadata"]["name"]

        def bind(thing: Object) -> None:
            thing["spec"]["nodeName"] = name
            set_condition(thing, "PodScheduled", "True")

        bound = self._store.change(PODS, meta["namespace"], meta["name"], bind)
        if bound is not None:
            said = f"Successfully assigned {meta['namespace']}/{meta['name']} to {name}"
            self._recorder.say(bound, "Normal", "Scheduled", said, component="default-scheduler")

    def _missing_claim(self, pod: Object) -> str | None:
        for volume in pod["spec"].get("volumes") or []:
            claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            if claim and self._store.find(CLAIMS, pod["metadata"]["namespace"], claim) is None:
                return str(claim)
        return None

    def _lacking(self, asked: Resources, node: Object) -> list[str]:
        used = self._used.get(node["metadata"]["name"], {})
        room = node["status"]["allocatable"]
        lacking = []
        for what, amount in asked.items():
            if used.get(what, 0.0) + amount > quantity(room.get(what, 0)) + 1e-9:
                lacking.append("Too many pods" if what == "pods" else f"Insufficient {what}")
        return lacking

    def _preempt(self, pod: Object, asked: Resources, nodes: list[Object]) -> list[Object]:
        """Delete pods of lower priority where that makes room on some node."""
        priority = pod["spec"].get("priority", 0)
        if pod["spec"].get("preemptionPolicy") == "Never":
            return []
        for node in nodes:
            if unfit(pod, node):
                continue
            name = node["metadata"]["name"]
            lower = sorted(
                (one for one in self._store.all(PODS)
                 if one["spec"].get("nodeName") == name and one["spec"].get("priority", 0) < priority
                 and one["metadata"]["uid"] in self._taken and not one["metadata"].get("deletionTimestamp")),
                key=lambda one: one["spec"].get("priority", 0),
            )  # fmt: skip
            room = {what: quantity(amount) for what, amount in node["status"]["allocatable"].items()}
            used = dict(self._used.get(name, {}))
            victims: list[Object] = []
            while lower and any(used.get(w, 0.0) + amount > room.get(w, 0.0) for w, amount in asked.items()):
                victims.append(lower.pop(0))
                for what, amount in self._taken[victims[-1]["metadata"]["uid"]][1].items():
                    used[what] -= amount
            if victims and all(used.get(w, 0.0) + amount <= room.get(w, 0.0) for w, amount in asked.items()):
                for victim in victims:
                    self._send_away(victim, pod, name)
                return victims
        return []

    def _send_away(self, victim: Object, pod: Object, node: str) -> None:
        meta = victim["metadata"]

        def mark(thing: Object) -> None:
            said = "default-scheduler: preempting to accommodate a higher priority pod"
            set_condition(thing, "DisruptionTarget", "True", "PreemptionByScheduler", said)

        self._store.change(PODS, meta["namespace"], meta["name"], mark)
        said = f"Preempted by pod {pod['metadata']['uid']} on node {node}"
        self._recorder.say(victim, "Normal", "Preempted", said, component="default-scheduler")
        self._api.delete(PODS, meta["namespace"], meta["name"], DeleteOptions())

    def _refuse(self, pod: Object, message: str) -> None:
        self._tell(pod, "Unschedulable", message)
        self._recorder.say(pod, "Warning", "FailedScheduling", message, component="default-scheduler")

    def _tell(self, pod: Object, reason: str, message: str) -> None:
        meta = pod["metadata"]
        old = next((one for one in pod["status"].get("conditions") or [] if one["type"] == "PodScheduled"), None)
        if old is not None and (old.get("reason"), old.get("message")) == (reason, message):
            return

        def write(thing: Object) -> None:
            set_condition(thing, "PodScheduled", "False", reason, message)

        self._store.change(PODS, meta["namespace"], meta["name"], write)


def unfit(pod: Object, node: Object) -> list[str]:
    """What about a node itself keeps a pod away: taints, labels, unschedulable."""
    labels = node["metadata"].get("labels") or {}
    for taint in node["spec"].get("taints") or []:
        if taint["effect"] == "PreferNoSchedule" or any(
            _tolerates(one, taint) for one in pod["spec"].get("tolerations") or []
        ):
            continue
        shown = f"{taint['key']}: {taint['value']}" if taint.get("value") else f"{taint['key']}: "
        return [f"node(s) had untolerated taint(s) {{{shown}}}"]
    if node["spec"].get("unschedulable"):
        return ["node(s) were unschedulable"]
    selector = pod["spec"].get("nodeSelector") or {}
    affinity = ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if any(labels.get(key) != value for key, value in selector.items()) or (
        affinity and not any(_selects(term, labels) for term in affinity["nodeSelectorTerms"])
    ):
        return ["node(s) didn't match Pod's node affinity/selector"]
    return []


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return toleration.get("key") == taint["key"] and (toleration.get("value") or "") == (taint.get("value") or "")


def _selects(term: Object, labels: dict[str, str]) -> bool:
    def fits(need: Object) -> bool:
        have, values = labels.get(need["key"]), need.get("values") or []
        match need["operator"]:
            case "In":
                return have in values
            case "NotIn":
                return have not in values
            case "Exists":
                return have is not None
            case "DoesNotExist":
                return have is None
            case "Gt":
                return have is not None and int(have) > int(values[0])
            case _:
                return have is not None and int(have) < int(values[0])

    return all(fits(need) for need in term.get("matchExpressions") or [])
