"""agent-sandbox: sandboxes that are one pod each, pools of warm ones, and claims that take one out of a pool.

As the project's own controllers of v1beta1: a warm sandbox that is claimed keeps its name and its pod and changes its
owner; a claim with variables or volumes starts cold, under its own name. Network policies of templates are not made.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from ..errors import Object, copied
from ..resources import CLAIMS, PODS, SANDBOX_CLAIMS, SANDBOX_TEMPLATES, SANDBOXES, SERVICES, WARM_POOLS
from ..store import Change, Key, key_of, parse_time
from .base import Controller, find_condition, is_ready, put_condition, reference
from .stateful_sets import digest

PREFIX = "agents.x-k8s.io/"
NAME_HASH = f"{PREFIX}sandbox-name-hash"
POOL_HASH = f"{PREFIX}warm-pool-sandbox"
TEMPLATE_HASH = f"{PREFIX}sandbox-template-hash"
TEMPLATE_REF_HASH = f"{PREFIX}sandbox-template-ref-hash"
CLAIM_UID = f"{PREFIX}claim-uid"
LAUNCH_TYPE = f"{PREFIX}launch-type"
POD_NAME = f"{PREFIX}pod-name"
ASSIGNED = f"{PREFIX}sandbox-name"


def fnv(text: str) -> str:
    """FNV-1a in 32 bits, as eight digits: how the controllers write names into labels."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return f"{value:08x}"


class SandboxController(Controller):
    """One pod a sandbox, while its mode says so and its time is not over."""

    resource = SANDBOXES
    name = "sandbox-controller"
    owned = (PODS, SERVICES)

    def reconcile(self, thing: Object) -> None:
        sandbox, spec, meta = thing, thing["spec"], thing["metadata"]
        if meta.get("deletionTimestamp"):
            return
        pod = next(iter(self.children(PODS, sandbox)), None)
        left = seconds_left(spec.get("shutdownTime"))
        if left is not None and left <= 0:
            self._expire(sandbox, pod)
            return
        if left is not None:
            self.later(key_of(sandbox), left)
        suspended = spec.get("operatingMode") == "Suspended"
        if suspended and pod is not None:
            self.remove(PODS, pod)
        elif not suspended and pod is None:
            pod = self._make_pod(sandbox)
        if spec.get("service") and not self.children(SERVICES, sandbox):
            self._make_service(sandbox)
        self._write(sandbox, pod, suspended=suspended)

    def _make_pod(self, sandbox: Object) -> Object:
        meta, template = sandbox["metadata"], copied(sandbox["spec"]["podTemplate"])
        labels = {**((template.get("metadata") or {}).get("labels") or {}), NAME_HASH: fnv(meta["name"])}
        for key in (POOL_HASH, TEMPLATE_REF_HASH, CLAIM_UID):
            if value := (meta.get("labels") or {}).get(key):
                labels[key] = value
        annotations = (template.get("metadata") or {}).get("annotations") or {}
        spec = template["spec"]
        for claim in sandbox["spec"].get("volumeClaimTemplates") or []:
            what = claim["metadata"]["name"]
            name = f"{what}-{meta['name']}"
            if self.store.find(CLAIMS, meta["namespace"], name) is None:
                self.make(CLAIMS, sandbox, {"metadata": {"name": name}, "spec": claim["spec"]})
            volumes = [one for one in spec.get("volumes") or [] if one["name"] != what]
            spec["volumes"] = [*volumes, {"name": what, "persistentVolumeClaim": {"claimName": name}}]
        body = {"metadata": {"name": meta["name"], "labels": labels, "annotations": annotations}, "spec": spec}
        pod = self.make(PODS, sandbox, body)
        self.store.change(
            SANDBOXES, *key_of(sandbox),
            lambda one: one["metadata"].setdefault("annotations", {}).update({POD_NAME: meta["name"]}),
        )  # fmt: skip
        return pod

    def _make_service(self, sandbox: Object) -> None:
        name = sandbox["metadata"]["name"]
        spec = {"clusterIP": "None", "selector": {NAME_HASH: fnv(name)}}
        self.make(SERVICES, sandbox, {"metadata": {"name": name, "labels": {NAME_HASH: fnv(name)}}, "spec": spec})

    def _expire(self, sandbox: Object, pod: Object | None) -> None:
        for service in self.children(SERVICES, sandbox):
            self.remove(SERVICES, service)
        if pod is not None:
            self.remove(PODS, pod)
        if sandbox["spec"].get("shutdownPolicy") == "Delete":
            self.remove(SANDBOXES, sandbox)
            return
        status: Object = {}
        generation = sandbox["metadata"]["generation"]
        put_condition(status, generation, "Ready", ("False", "SandboxExpired", "Sandbox has expired"))
        if (find_condition(sandbox, "Ready") or {}).get("reason") != "SandboxExpired":
            self.say_status(sandbox, status)

    def _write(self, sandbox: Object, pod: Object | None, *, suspended: bool) -> None:
        meta = sandbox["metadata"]
        status: Object = copied(sandbox.get("status") or {})
        generation = meta["generation"]
        for key in ("podIPs", "nodeName", "selector"):
            status.pop(key, None)
        if pod is not None:
            status["selector"] = f"{NAME_HASH}={fnv(meta['name'])}"
            if ips := [one["ip"] for one in pod["status"].get("podIPs") or []]:
                status["podIPs"] = ips
            if pod["spec"].get("nodeName"):
                status["nodeName"] = pod["spec"]["nodeName"]
        if sandbox["spec"].get("service"):
            status["service"] = meta["name"]
            status["serviceFQDN"] = f"{meta['name']}.{meta['namespace']}.svc.cluster.local"
        if suspended:
            gone = pod is None
            reason = "PodTerminated" if gone else "PodTerminating"
            said = "Pod has been terminated" if gone else "Pod is terminating"
            put_condition(status, generation, "Suspended", (str(gone), reason, said))
        put_condition(status, generation, "Ready", _readiness(pod, suspended=suspended))
        phase = (pod or {}).get("status", {}).get("phase")
        status["conditions"] = [one for one in status["conditions"] if one["type"] != "Finished"]
        if phase in ("Succeeded", "Failed"):
            said = "Pod completed successfully" if phase == "Succeeded" else "Pod failed"
            put_condition(status, generation, "Finished", ("True", f"Pod{phase}", said))
        self.say_status(sandbox, status)


def _readiness(pod: Object | None, *, suspended: bool) -> tuple[str, str, str]:
    """Value, reason and message of a sandbox's condition Ready."""
    if suspended:
        return "False", "SandboxSuspended", "Sandbox is suspended" if pod is None else "Sandbox is suspending"
    if pod is None:
        return "False", "DependenciesNotReady", "Pod does not exist"
    phase = pod["status"]["phase"]
    if phase == "Succeeded":
        return "False", "PodSucceeded", "Pod completed successfully"
    if phase == "Failed":
        return "False", "PodFailed", "Pod failed"
    if phase == "Running" and is_ready(pod):
        return "True", "DependenciesReady", "Pod is Ready"
    said = "Pod is Running but not Ready" if phase == "Running" else f"Pod exists with phase: {phase}"
    return "False", "DependenciesNotReady", said


class WarmPoolController(Controller):
    """Keeps so many sandboxes of a template that nobody has claimed."""

    resource = WARM_POOLS
    name = "sandboxwarmpool-controller"
    owned = (SANDBOXES,)

    def keys(self, change: Change) -> Iterator[Key]:
        yield from super().keys(change)
        before = (change.before or {}).get("metadata") or {}
        for ref in before.get("ownerReferences") or []:
            if change.resource == SANDBOXES and ref["kind"] == "SandboxWarmPool":
                yield before["namespace"], ref["name"]
        if change.resource == SANDBOX_TEMPLATES:
            for pool in self.store.all(WARM_POOLS, change.thing["metadata"]["namespace"]):
                if pool["spec"]["sandboxTemplateRef"]["name"] == change.thing["metadata"]["name"]:
                    yield key_of(pool)

    def reconcile(self, thing: Object) -> None:
        pool, namespace = thing, thing["metadata"]["namespace"]
        if pool["metadata"].get("deletionTimestamp"):
            return
        mine = [one for one in self.children(SANDBOXES, pool) if not one["metadata"].get("deletionTimestamp")]
        template = self.store.find(SANDBOX_TEMPLATES, namespace, pool["spec"]["sandboxTemplateRef"]["name"])
        if template is not None:
            if (pool["spec"].get("updateStrategy") or {}).get("type") == "Recreate":
                fresh = digest(blueprint(template))
                for one in [one for one in mine if one["metadata"]["labels"][TEMPLATE_HASH] != fresh]:
                    self.remove(SANDBOXES, one)
                    mine.remove(one)
            mine += [self._make(pool, template) for _ in range(pool["spec"]["replicas"] - len(mine))]
        for extra in sorted(mine, key=_is_up)[: max(0, len(mine) - pool["spec"]["replicas"])]:
            self.remove(SANDBOXES, extra)
            mine.remove(extra)
        status = {
            "replicas": len(mine),
            "readyReplicas": sum(_is_up(one) for one in mine),
            "selector": f"{POOL_HASH}={fnv(pool['metadata']['name'])}",
            "observedGeneration": pool["metadata"]["generation"],
        }
        self.say_status(pool, status)

    def _make(self, pool: Object, template: Object) -> Object:
        name, reference_hash = template["metadata"]["name"], fnv(template["metadata"]["name"])
        labels = {
            POOL_HASH: fnv(pool["metadata"]["name"]),
            TEMPLATE_REF_HASH: reference_hash,
            TEMPLATE_HASH: digest(blueprint(template)),
            LAUNCH_TYPE: "warm",
        }
        meta = {
            "generateName": f"{pool['metadata']['name']}-",
            "labels": labels,
            "annotations": {f"{PREFIX}sandbox-template-ref": name},
        }
        return self.make(SANDBOXES, pool, {"metadata": meta, "spec": blueprint(template)})


class SandboxClaimController(Controller):
    """Gives each claim a sandbox, and takes it away when the claim's time is over."""

    resource = SANDBOX_CLAIMS
    name = "sandboxclaim-controller"
    owned = (SANDBOXES,)

    def keys(self, change: Change) -> Iterator[Key]:
        yield from super().keys(change)
        if change.resource in (WARM_POOLS, SANDBOX_TEMPLATES) and change.type == "ADDED":
            for claim in self.store.all(SANDBOX_CLAIMS, change.thing["metadata"]["namespace"]):
                yield key_of(claim)

    def reconcile(self, thing: Object) -> None:
        claim, lifecycle = thing, thing["spec"].get("lifecycle") or {}
        if claim["metadata"].get("deletionTimestamp"):
            return
        left = self._seconds_left(claim, lifecycle)
        if left is not None and left <= 0:
            self._expire(claim, lifecycle.get("shutdownPolicy", "Retain"))
            return
        if left is not None:
            self.later(key_of(claim), left)
        sandbox = next(iter(self.children(SANDBOXES, claim)), None)
        why = None
        if sandbox is None:
            sandbox, why = self._give(claim)
        self._write(claim, sandbox, why)

    def _seconds_left(self, claim: Object, lifecycle: Object) -> float | None:
        left = seconds_left(lifecycle.get("shutdownTime"))
        finished, ttl = find_condition(claim, "Finished"), lifecycle.get("ttlSecondsAfterFinished")
        if finished is not None and ttl is not None:
            age = (datetime.now(UTC) - parse_time(finished["lastTransitionTime"])).total_seconds()
            left = min(ttl - age, ttl - age if left is None else left)
        return left

    def _give(self, claim: Object) -> tuple[Object | None, tuple[str, str] | None]:
        """A sandbox for a claim; or reason and message of why there is none."""
        namespace, spec = claim["metadata"]["namespace"], claim["spec"]
        name = spec["warmPoolRef"]["name"]
        pool = self.store.find(WARM_POOLS, namespace, name)
        if pool is None:
            return None, ("WarmPoolNotFound", f'SandboxWarmPool "{name}" not found')
        wanted = pool["spec"]["sandboxTemplateRef"]["name"]
        template = self.store.find(SANDBOX_TEMPLATES, namespace, wanted)
        if template is None:
            return None, ("TemplateNotFound", f'SandboxTemplate "{wanted}" not found')
        if spec.get("env") and template["spec"].get("envVarsInjectionPolicy", "Disallowed") == "Disallowed":
            said = "environment variable injection is not allowed by the template policy"
            return None, ("EnvVarsInjectionRejected", f"environment variable injection rejected: {said}")
        volumes_policy = template["spec"].get("volumeClaimTemplatesPolicy", "Disallowed")
        if spec.get("volumeClaimTemplates") and volumes_policy == "Disallowed":
            return None, ("VolumeClaimTemplatesError", "volume claim templates are disallowed by the template")
        if not spec.get("env") and not spec.get("volumeClaimTemplates"):
            warm = [one for one in self.children(SANDBOXES, pool) if not one["metadata"].get("deletionTimestamp")]
            chosen = next((one for one in sorted(warm, key=_order) if one.get("status", {}).get("podIPs")), None)
            if chosen is not None:
                return self._adopt(claim, chosen, template), None
        return self._start_cold(claim, template), None

    def _adopt(self, claim: Object, sandbox: Object, template: Object) -> Object:
        pod_meta = self._pod_metadata(claim, template)

        def move(stored: Object) -> None:
            meta = stored["metadata"]
            meta["labels"] = {
                key: value for key, value in meta["labels"].items() if key not in (POOL_HASH, TEMPLATE_HASH)
            }
            meta["labels"] |= {CLAIM_UID: claim["metadata"]["uid"], LAUNCH_TYPE: "warm"}
            meta["ownerReferences"] = [reference(claim)]
            stored["spec"]["podTemplate"]["metadata"] = pod_meta
            meta["generation"] += 1

        adopted = self.store.change(SANDBOXES, *key_of(sandbox), move) or sandbox
        key = sandbox["metadata"]["namespace"], (sandbox["metadata"].get("annotations") or {}).get(POD_NAME, "")

        def relabel(pod: Object) -> None:
            labels = {k: v for k, v in pod["metadata"]["labels"].items() if k not in (POOL_HASH, TEMPLATE_HASH)}
            pod["metadata"]["labels"] = {**labels, **pod_meta["labels"]}
            pod["metadata"].setdefault("annotations", {}).update(pod_meta["annotations"])

        self.store.change(PODS, *key, relabel)
        return adopted

    def _start_cold(self, claim: Object, template: Object) -> Object:
        spec = copied(blueprint(template))
        spec["podTemplate"]["metadata"] = self._pod_metadata(claim, template)
        containers = spec["podTemplate"]["spec"]["containers"]
        for variable in claim["spec"].get("env") or []:
            chosen = next((one for one in containers if one["name"] == variable.get("containerName")), containers[0])
            others = [one for one in chosen.get("env") or [] if one["name"] != variable["name"]]
            chosen["env"] = [*others, {"name": variable["name"], "value": variable.get("value", "")}]
        if claim["spec"].get("volumeClaimTemplates"):
            spec["volumeClaimTemplates"] = claim["spec"]["volumeClaimTemplates"]
        labels = {CLAIM_UID: claim["metadata"]["uid"], LAUNCH_TYPE: "cold"}
        labels[TEMPLATE_REF_HASH] = fnv(template["metadata"]["name"])
        return self.make(
            SANDBOXES, claim, {"metadata": {"name": claim["metadata"]["name"], "labels": labels}, "spec": spec}
        )

    def _pod_metadata(self, claim: Object, template: Object) -> Object:
        own = template["spec"]["podTemplate"].get("metadata") or {}
        more = claim["spec"].get("additionalPodMetadata") or {}
        identity = {CLAIM_UID: claim["metadata"]["uid"], TEMPLATE_REF_HASH: fnv(template["metadata"]["name"])}
        return {
            "labels": {**(own.get("labels") or {}), **identity, **(more.get("labels") or {})},
            "annotations": {**(own.get("annotations") or {}), **(more.get("annotations") or {})},
        }

    def _expire(self, claim: Object, policy: str) -> None:
        if policy in ("Delete", "DeleteForeground"):
            self.remove(
                SANDBOX_CLAIMS, claim, propagation="Foreground" if policy == "DeleteForeground" else "Background"
            )
            return
        for sandbox in self.children(SANDBOXES, claim):
            self.remove(SANDBOXES, sandbox)
        status: Object = {"conditions": copied((claim.get("status") or {}).get("conditions") or [])}
        said = "Claim expired. Sandbox cleanup initiated."
        put_condition(status, claim["metadata"]["generation"], "Ready", ("False", "ClaimExpired", said))
        self.say_status(claim, status)

    def _write(self, claim: Object, sandbox: Object | None, why: tuple[str, str] | None) -> None:
        status: Object = {"conditions": copied((claim.get("status") or {}).get("conditions") or [])}
        generation = claim["metadata"]["generation"]
        reason, message = why or ("SandboxNotReady", "Sandbox is not ready")
        value = "False"
        if sandbox is not None:
            status["sandbox"] = {"name": sandbox["metadata"]["name"]}
            if ips := (sandbox.get("status") or {}).get("podIPs"):
                status["sandbox"]["podIPs"] = ips
            if ready := find_condition(sandbox, "Ready"):
                value, reason, message = ready["status"], ready["reason"], ready["message"]
            if finished := find_condition(sandbox, "Finished"):
                put_condition(status, generation, "Finished", ("True", finished["reason"], finished["message"]))
            self._note_assignment(claim, sandbox["metadata"]["name"])
        put_condition(status, generation, "Ready", (value, reason, message))
        self.say_status(claim, status)

    def _note_assignment(self, claim: Object, name: str) -> None:
        self.store.change(
            SANDBOX_CLAIMS, *key_of(claim),
            lambda one: one["metadata"].setdefault("annotations", {}).update({ASSIGNED: name}),
        )  # fmt: skip


def blueprint(template: Object) -> Object:
    """What a sandbox takes from a template; without a word about it, pods get no token."""
    keys = ("podTemplate", "volumeClaimTemplates", "service")
    made: Object = copied({key: template["spec"][key] for key in keys if key in template["spec"]})
    made["podTemplate"]["spec"].setdefault("automountServiceAccountToken", False)
    return made


def seconds_left(moment: str | None) -> float | None:
    return None if moment is None else (parse_time(moment) - datetime.now(UTC)).total_seconds()


def _is_up(sandbox: Object) -> bool:
    ready = find_condition(sandbox, "Ready")
    return ready is not None and ready["status"] == "True"


def _order(sandbox: Object) -> tuple[bool, str]:
    """Those that are ready first, then the oldest."""
    return not _is_up(sandbox), sandbox["metadata"]["creationTimestamp"]
