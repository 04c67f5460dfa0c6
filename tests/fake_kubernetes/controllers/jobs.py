"""The job controller: pods until enough of them succeeded, or too many failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ..api import Api
from ..errors import Object, copied
from ..events import Recorder
from ..pod_status import set_condition
from ..resources import JOBS, PODS
from ..store import key_of, now_text, parse_time
from .base import Controller, condition, is_over, is_ready

INDEX = "batch.kubernetes.io/job-completion-index"


@dataclass
class Count:
    """What became of a job's pods: uid -> how it ended. Pods may be gone by now."""

    succeeded: dict[str, int | None] = field(default_factory=dict)
    """uid -> completion index."""
    failed: set[str] = field(default_factory=set)
    ignored: set[str] = field(default_factory=set)
    next_at: float = 0.0


class JobController(Controller):
    """Does not know success policies and limits by index."""

    resource = JOBS
    name = "job-controller"
    owned = (PODS,)

    def __init__(
        self, api: Api, recorder: Recorder, backoff_s: Callable[[], float], clock: Callable[[], float]
    ) -> None:
        super().__init__(api, recorder)
        self._backoff_s = backoff_s
        self._clock = clock
        self._counts: dict[str, Count] = {}

    def reconcile(self, thing: Object) -> None:
        job = thing
        if job["metadata"].get("deletionTimestamp"):
            return
        if condition(job, "Complete") == "True" or condition(job, "Failed") == "True":
            self._expire(job)
            return
        count = self._counts.setdefault(job["metadata"]["uid"], Count())
        pods = self.children(PODS, job)
        fatal = self._count(job, pods, count)
        active = [pod for pod in pods if not is_over(pod) and not pod["metadata"].get("deletionTimestamp")]
        status: Object = copied(job.get("status") or {})
        holder: Object = {"status": status}
        if job["spec"].get("suspend"):
            for pod in active:
                self.remove(PODS, pod)
            if condition(job, "Suspended") != "True":
                set_condition(holder, "Suspended", "True", "JobSuspended", "Job suspended")
                self.recorder.say(job, "Normal", "Suspended", "Job suspended", component=self.name)
            status.pop("startTime", None)
            active = []
        else:
            if condition(job, "Suspended") == "True":
                set_condition(holder, "Suspended", "False", "JobResumed", "Job resumed")
                self.recorder.say(job, "Normal", "Resumed", "Job resumed", component=self.name)
            status.setdefault("startTime", now_text())
            ended = self._ended(job, count, status, fatal)
            if ended is not None:
                self._finish(job, holder, active, ended)
                active = []
            else:
                active = self._start_pods(job, pods, active, count)
        self._write(job, holder["status"], pods, active, count)

    def _count(self, job: Object, pods: list[Object], count: Count) -> str | None:
        """Note how pods ended. The answer says why the job fails at once, if a rule of its policy wants that."""
        fatal = None
        for pod in pods:
            uid = pod["metadata"]["uid"]
            if uid in count.succeeded or uid in count.failed or uid in count.ignored:
                continue
            if pod["status"].get("phase") == "Succeeded":
                count.succeeded[uid] = index_of(pod)
            elif pod["status"].get("phase") == "Failed" or pod["metadata"].get("deletionTimestamp"):
                if job["spec"].get("suspend"):
                    count.ignored.add(uid)
                    continue
                action, said = policy(job, pod)
                if action == "Ignore":
                    count.ignored.add(uid)
                else:
                    count.failed.add(uid)
                    count.next_at = self._clock() + self._backoff_s() * min(2 ** (len(count.failed) - 1), 32)
                if action == "FailJob":
                    fatal = said
        return fatal

    def _ended(self, job: Object, count: Count, status: Object, fatal: str | None) -> tuple[str, str, str] | None:
        """(Complete or Failed, reason, message) of a job that is over."""
        spec = job["spec"]
        if fatal:
            return "Failed", "PodFailurePolicy", fatal
        if len(count.failed) > spec["backoffLimit"]:
            return "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        if (deadline := spec.get("activeDeadlineSeconds")) is not None:
            left = deadline - (datetime.now(UTC) - parse_time(status["startTime"])).total_seconds()
            if left <= 0:
                return "Failed", "DeadlineExceeded", "Job was active longer than specified deadline"
            self.later(key_of(job), left)
        wanted = spec.get("completions")
        done = len({*count.succeeded.values()}) if is_indexed(job) else len(count.succeeded)
        if (wanted is not None and done >= wanted) or (wanted is None and done):
            return "Complete", "CompletionsReached", "Reached expected number of succeeded pods"
        return None

    def _finish(self, job: Object, holder: Object, active: list[Object], ended: tuple[str, str, str]) -> None:
        kind, reason, message = ended
        before = "SuccessCriteriaMet" if kind == "Complete" else "FailureTarget"
        set_condition(holder, before, "True", reason, message)
        set_condition(holder, kind, "True", reason, message)
        for pod in active:
            self.remove(PODS, pod)
        if kind == "Complete":
            holder["status"]["completionTime"] = now_text()
            self.recorder.say(job, "Normal", "Completed", "Job completed", component=self.name)
        else:
            self.recorder.say(job, "Warning", reason, message, component=self.name)

    def _start_pods(self, job: Object, pods: list[Object], active: list[Object], count: Count) -> list[Object]:
        """Create what is missing, take away what is too much."""
        spec = job["spec"]
        wait = count.next_at - self._clock()
        if wait > 0:
            self.later(key_of(job), wait)
            return active
        if spec.get("podReplacementPolicy") == "Failed":
            active = [*active, *(pod for pod in pods if pod["metadata"].get("deletionTimestamp") and not is_over(pod))]
        parallelism, completions = spec["parallelism"], spec.get("completions")
        for pod in active[parallelism:]:
            self.remove(PODS, pod)
        active = active[:parallelism]
        if is_indexed(job):
            taken = {index_of(pod) for pod in active} | {*count.succeeded.values()}
            free = [index for index in range(completions) if index not in taken]
            return active + [self._make(job, index) for index in free[: parallelism - len(active)]]
        left = parallelism if completions is None else min(parallelism, completions - len(count.succeeded))
        return active + [self._make(job, None) for _ in range(max(0, left - len(active)))]

    def _make(self, job: Object, index: int | None) -> Object:
        template, name = copied(job["spec"]["template"]), job["metadata"]["name"]
        meta = template.setdefault("metadata", {})
        for key in ("name", "creationTimestamp"):
            meta.pop(key, None)
        meta["generateName"] = f"{name}-" if index is None else f"{name}-{index}-"
        if index is not None:
            meta.setdefault("labels", {})[INDEX] = str(index)
            meta.setdefault("annotations", {})[INDEX] = str(index)
            template["spec"].setdefault("hostname", f"{name}-{index}")
            for container in (*(template["spec"].get("initContainers") or []), *template["spec"]["containers"]):
                source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}}
                container.setdefault("env", []).append({"name": "JOB_COMPLETION_INDEX", "valueFrom": source})
        pod = self.make(PODS, job, {"metadata": meta, "spec": template["spec"]})
        self.recorder.say(
            job, "Normal", "SuccessfulCreate", f"Created pod: {pod['metadata']['name']}", component=self.name
        )
        return pod

    def _write(self, job: Object, status: Object, pods: list[Object], active: list[Object], count: Count) -> None:
        amounts = {
            "active": len(active),
            "ready": sum(is_ready(pod) for pod in active),
            "succeeded": len(count.succeeded),
            "failed": len(count.failed),
            "terminating": sum(bool(pod["metadata"].get("deletionTimestamp")) and not is_over(pod) for pod in pods),
        }
        for key, value in amounts.items():
            if value or key in ("ready", "terminating"):
                status[key] = value
            else:
                status.pop(key, None)
        status["uncountedTerminatedPods"] = {}
        if is_indexed(job) and count.succeeded:
            status["completedIndexes"] = intervals(
                sorted({index for index in count.succeeded.values() if index is not None})
            )
        self.say_status(job, status)

    def _expire(self, job: Object) -> None:
        ttl = job["spec"].get("ttlSecondsAfterFinished")
        if ttl is None:
            return
        ended = next(one for one in job["status"]["conditions"] if one["type"] in ("Complete", "Failed"))
        left = ttl - (datetime.now(UTC) - parse_time(ended["lastTransitionTime"])).total_seconds()
        if left > 0:
            self.later(key_of(job), left)
        else:
            self.remove(JOBS, job, propagation="Foreground")


def is_indexed(job: Object) -> bool:
    return bool(job["spec"].get("completionMode") == "Indexed")


def index_of(pod: Object) -> int | None:
    text = (pod["metadata"].get("annotations") or {}).get(INDEX)
    return None if text is None else int(text)


def intervals(numbers: list[int]) -> str:
    """Indexes as a job's status writes them: ``0,2-4``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def policy(job: Object, pod: Object) -> tuple[str, str]:
    """What the pod failure policy says of a failed pod: Ignore, FailJob or Count, and why."""
    name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    for number, rule in enumerate((job["spec"].get("podFailurePolicy") or {}).get("rules") or []):
        for wanted in rule.get("onPodConditions") or []:
            if condition(pod, wanted["type"]) == wanted.get("status", "True"):
                said = f"Pod {name} has condition {wanted['type']} matching {rule['action']} rule at index {number}"
                return rule["action"], said
        if exits := rule.get("onExitCodes"):
            for status in pod["status"].get("containerStatuses") or []:
                if _matches(exits, status):
                    code = status["state"]["terminated"]["exitCode"]
                    failed = f"Container {status['name']} for pod {name} failed with exit code {code}"
                    said = f"{failed} matching {rule['action']} rule at index {number}"
                    return rule["action"], said
    return "Count", ""


def _matches(rule: Object, status: Any) -> bool:
    terminated = status["state"].get("terminated")
    if terminated is None or terminated["exitCode"] == 0:
        return False
    if rule.get("containerName") not in (None, status["name"]):
        return False
    return bool((terminated["exitCode"] in rule["values"]) is (rule["operator"] == "In"))
