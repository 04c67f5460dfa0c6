"""Runs in a namespace, from outside: submitted, listed, followed and stopped through the API server alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from random import Random
from typing import Any

from agentrl.cluster.kubernetes.control import (
    CONFIG_FILE,
    OVERVIEW_FILE,
    ROLE_NAME,
    STATUS_FILE,
    controller_job,
    dependents,
    record,
    runs_claim,
)
from agentrl.cluster.kubernetes.pod_state import plight
from agentrl.cluster.kubernetes.site import RECORD, Object, Site, owner_reference, record_name
from agentrl.cluster.kubernetes.workload import Submission
from agentrl.errors import AgentrlError, UserError
from agentrl.kubernetes.client import KubernetesClient, Request
from agentrl.kubernetes.errors import AlreadyExists
from agentrl.kubernetes.logs import follow_log, read_log
from agentrl.kubernetes.names import ROLE, RUN
from agentrl.kubernetes.resources import (
    CONFIG_MAPS,
    JOBS,
    NETWORK_POLICIES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    Resource,
    resource_of,
)
from agentrl.kubernetes.watch import Watched

_STOP_S = 120.0
"""Beyond the controller's grace, until everything of a run must be gone."""
_UNOWNED = (SERVICE_ACCOUNTS, ROLE_BINDINGS, ROLES, NETWORK_POLICIES)
"""What has no owner where something else than `agentrl launch` has applied it."""
LOST = "lost its controller"
"""Status of a run that should have one and has none."""


class Runs:
    """The runs of one namespace."""

    def __init__(self, client: KubernetesClient, *, entropy: Random) -> None:
        self._client = client
        self._entropy = entropy

    # --- what there is

    async def groups(self) -> frozenset[str]:
        """The API groups that the cluster serves beside the core one."""
        found = await self._client.request(Request("GET", "/apis", what="ask what is served", counted="discovery"))
        return frozenset(group["name"] for group in found["groups"])

    async def records(self) -> list[Object]:
        """One ConfigMap a run, oldest first."""
        found = (await self._client.list_all(CONFIG_MAPS, labels=RECORD)).items
        return sorted(found, key=lambda one: one["metadata"].get("creationTimestamp") or "")

    async def free_name(self, stem: str) -> str:
        """`stem` with the first number that no run has."""
        taken = {one["metadata"]["labels"][RECORD] for one in await self.records()}
        number = 1
        while f"{stem}-{number:03d}" in taken:
            number += 1
        return f"{stem}-{number:03d}"

    async def record_of(self, run: str) -> Object:
        """Raises UserError if there is no such run."""
        found = await self._client.find(CONFIG_MAPS, record_name(run))
        if found is None:
            known = ", ".join(one["metadata"]["labels"][RECORD] for one in await self.records()) or "none"
            raise UserError(f"no run {run!r} in namespace {self._client.namespace}", hint=f"runs there: {known}")
        return found

    async def overviews(self) -> list[dict[str, Any]]:
        """A line about each run, as `agentrl ps` prints it."""
        jobs = {job["metadata"]["name"]: job for job in (await self._client.list_all(JOBS, labels=RUN)).items}
        return [_overview(one, jobs.get(one["metadata"]["labels"][RECORD])) for one in await self.records()]

    async def status(self, run: str) -> dict[str, Any]:
        """Its figures as its controller wrote them last, and the pods that it has now."""
        found = await self.record_of(run)
        job = await self._client.find(JOBS, run)
        status: dict[str, Any] = json.loads(found["data"].get(STATUS_FILE) or "{}")
        row = _overview(found, job)
        pods = (await self._client.list_all(PODS, labels=f"{RUN}={run},{ROLE}!=sandbox")).items
        phases = {pod["metadata"]["name"]: pod.get("status", {}).get("phase", "") for pod in pods}
        return {**status, "name": run, "status": row["status"], "controller": row["controller"], "processes": phases}

    async def pods(self, run: str, role: str | None) -> list[Object]:
        """Pods of a role, or of all but the sandboxes, oldest first."""
        wanted = f"{ROLE}!=sandbox" if role is None else f"{ROLE}={role}"
        found = (await self._client.list_all(PODS, labels=f"{RUN}={run},{wanted}")).items
        return sorted(found, key=_age)

    # --- start and stop

    async def submit(self, submission: Submission, *, new: bool) -> None:
        """Send a run's objects, its controller last. `new`: its name must be free; else it is gone on with.

        What was sent is taken back if not all of it is accepted. Raises UserError.
        """
        run, namespace = submission.run, self._client.namespace
        site = Site(run=run, namespace=namespace)
        await self._create_if_absent(runs_claim(submission.workload, namespace))
        if new:
            try:
                remembered = record(site, config_json=submission.config_json, config_text=submission.config_text)
                await self._client.create(CONFIG_MAPS, remembered)
            except AlreadyExists:
                hint = f"`agentrl resume -k {run}` goes on with it, or choose another name"
                raise UserError(f"name: run {run!r} exists in namespace {namespace}", hint=hint) from None
        try:
            job = await self._client.create(JOBS, controller_job(site, submission.workload))
        except AlreadyExists:
            raise UserError(
                f"run {run} has a controller already", hint=f"`agentrl watch -k {run}` follows it"
            ) from None
        try:
            owned = replace(site, owner=owner_reference(run, job["metadata"]["uid"]))
            for obj in dependents(owned, submission.workload, submission.sandbox_rules):
                await self._client.create(resource_of(obj), obj)
            await self._client.patch(JOBS, run, {"spec": {"suspend": False}})
        except (AgentrlError, asyncio.CancelledError):
            await self._client.delete(JOBS, run, propagation="Foreground")
            if new:
                await self._client.delete(CONFIG_MAPS, record_name(run))
            raise

    async def _create_if_absent(self, obj: Object) -> None:
        resource, name = resource_of(obj), obj["metadata"]["name"]
        if await self._client.find(resource, name) is None:
            try:
                await self._client.create(resource, obj)
            except AlreadyExists:
                return

    async def stop(self, run: str, *, grace_s: float) -> bool:
        """Ask the controller to end, then delete everything of the run. Returns whether there was anything.

        Raises AgentrlError if something is still there after its time.
        """
        job = await self._client.find(JOBS, run)
        if job is not None:
            if _ended(job) is None:
                await self._client.patch(JOBS, run, {"spec": {"suspend": True}})
                labels = f"{RUN}={run},{ROLE}={ROLE_NAME}"
                await self._until_gone(PODS, labels, lambda pod: not _is_over(pod), grace_s + _STOP_S, "its controller")
            await self._client.delete(JOBS, run, propagation="Foreground")
        for resource in _UNOWNED:
            for left in (await self._client.list_all(resource, labels=f"{RUN}={run}")).items:
                await self._client.delete(resource, left["metadata"]["name"])
        await self._until_gone(JOBS, f"{RUN}={run}", lambda _: True, _STOP_S, "jobs")
        await self._until_gone(PODS, f"{RUN}={run}", lambda _: True, _STOP_S, "pods")
        found = await self._client.find(CONFIG_MAPS, record_name(run))
        if found is not None and _overview(found, None)["status"] == LOST:
            row = json.loads(found["data"].get(OVERVIEW_FILE) or "{}") | {"status": "stopped"}
            await self._client.patch(CONFIG_MAPS, record_name(run), {"data": {OVERVIEW_FILE: json.dumps(row)}})
        return job is not None

    async def _until_gone(
        self, resource: Resource, labels: str, counts: Callable[[Object], bool], within_s: float, what: str
    ) -> None:
        """Wait until no object that counts is left."""
        changed = asyncio.Event()
        watched = Watched(
            self._client, resource, labels=labels, on_change=lambda _: changed.set(), entropy=self._entropy
        )
        try:
            async with asyncio.timeout(within_s), asyncio.TaskGroup() as group:
                watching = group.create_task(watched.run())
                await watched.synced()
                while any(counts(obj) for obj in watched.objects):
                    changed.clear()
                    await changed.wait()
                watching.cancel()
        except TimeoutError:
            left = ", ".join(obj["metadata"]["name"] for obj in watched.objects if counts(obj))
            raise AgentrlError(f"{what} of the run did not end in {within_s:g} s: {left}") from None

    # --- what it prints

    async def attach(self, run: str) -> AsyncIterator[str]:
        """What a run's controllers print, one after the other, until the last has ended."""
        changed, shown, said = asyncio.Event(), set[str](), set[str]()
        on_change = lambda _: changed.set()  # noqa: E731
        pods = Watched(
            self._client, PODS, labels=f"{RUN}={run},{ROLE}={ROLE_NAME}", on_change=on_change, entropy=self._entropy
        )
        jobs = Watched(self._client, JOBS, fields=f"metadata.name={run}", on_change=on_change, entropy=self._entropy)
        watching = [asyncio.create_task(one.run()) for one in (pods, jobs)]
        try:
            await asyncio.gather(pods.synced(), jobs.synced())
            while True:
                changed.clear()
                fresh = [pod for pod in sorted(pods.objects, key=_age) if pod["metadata"]["uid"] not in shown]
                started = next((pod for pod in fresh if pod.get("status", {}).get("phase") != "Pending"), None)
                if started is not None:
                    shown.add(started["metadata"]["uid"])
                    async for line in follow_log(self._client, started["metadata"]["name"], entropy=self._entropy):
                        yield line
                    continue
                for line in _new_plights(fresh, said):
                    yield line
                if not jobs.objects or _ended(jobs.objects[0]) is not None:
                    return
                await changed.wait()
        finally:
            for task in watching:
                task.cancel()

    async def log(self, pod: str, *, tail: int, follow: bool) -> AsyncIterator[str]:
        """The last lines of a pod's output, and with `follow` those that come."""
        if not follow:
            for line in await read_log(self._client, pod, tail=tail):
                yield line
            return
        async for line in follow_log(self._client, pod, entropy=self._entropy, tail=tail):
            yield line

    async def outcome(self, run: str) -> str | None:
        """Complete or Failed of the controller's Job; None while it runs, or once it is stopped."""
        job = await self._client.find(JOBS, run)
        return None if job is None else _ended(job)

    async def forget_ended(self, run: str) -> None:
        """Delete what a run that has ended has left, so that it can be gone on with. Raises UserError if it runs."""
        job = await self._client.find(JOBS, run)
        if job is None:
            return
        if _ended(job) is None:
            raise UserError(f"run {run} has a controller already", hint=f"`agentrl watch -k {run}` follows it")
        await self.stop(run, grace_s=0.0)

    async def config_of(self, run: str) -> str:
        """The resolved configuration that it was launched with, as JSON."""
        text: str = (await self.record_of(run))["data"][CONFIG_FILE]
        return text


def _overview(found: Object, job: Object | None) -> dict[str, Any]:
    run = found["metadata"]["labels"][RECORD]
    row: dict[str, Any] = {"run": run, "status": "created", "step": 0, "steps": 0, "reward": None}
    row |= json.loads(found["data"].get(OVERVIEW_FILE) or "{}")
    runs = job is not None and _ended(job) is None
    if row["status"] in ("running", "created") and not runs:
        row["status"] = "failed" if job is not None and _ended(job) == "Failed" else LOST
    if row["status"] not in ("running", "created") and runs:
        row["status"] = "running"  # again, and its controller has not said so yet
    return {**row, "run": run, "controller": run if runs else None}


def _ended(job: Object) -> str | None:
    """Complete or Failed; None while a Job goes on."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    kinds = [one["type"] for one in conditions if one.get("status") == "True"]
    return next((kind for kind in kinds if kind in ("Complete", "Failed")), None)


def _is_over(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _age(pod: Object) -> str:
    return str(pod["metadata"].get("creationTimestamp") or "")


def _new_plights(pods: Iterable[Object], said: set[str]) -> list[str]:
    found = [text for pod in pods if (text := plight(pod)) is not None and text not in said]
    said.update(found)
    return found
