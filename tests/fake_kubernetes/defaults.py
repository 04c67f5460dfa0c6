"""What the API writes into an object that did not say it."""

from __future__ import annotations

import base64
from typing import Any

from . import custom
from .errors import Object, copied
from .resources import CLAIMS, JOBS, NAMESPACES, PODS, SECRETS, SERVICES, STATEFUL_SETS, Resource

PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
TOLERATIONS = [
    {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for what in ("not-ready", "unreachable")
]


def fill(resource: Resource, thing: Object) -> None:
    """Write defaults into an object (which the caller owns)."""
    if resource == PODS:
        fill_pod(thing["spec"])
        thing["status"] = {"phase": "Pending", "qosClass": qos(thing["spec"])}
    elif resource == JOBS:
        _fill_job(thing)
    elif resource == STATEFUL_SETS:
        _fill(thing["spec"], {"replicas": 1, "podManagementPolicy": "OrderedReady", "revisionHistoryLimit": 10})
        fill_pod(thing["spec"]["template"].setdefault("spec", {}))
        thing["status"] = {"replicas": 0, "availableReplicas": 0}
    elif resource == SERVICES:
        spec = thing.setdefault("spec", {})
        _fill(spec, {"type": "ClusterIP", "sessionAffinity": "None"})
        for port in spec.get("ports") or []:
            _fill(port, {"protocol": "TCP", "targetPort": port.get("port")})
        thing["status"] = {"loadBalancer": {}}
    elif resource == SECRETS:
        thing.setdefault("type", "Opaque")
        _encode_secret(thing)
    elif resource == NAMESPACES:
        thing["spec"] = {"finalizers": ["kubernetes"]}
        thing["status"] = {"phase": "Active"}
        thing["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = thing["metadata"]["name"]
    elif resource == CLAIMS:
        _fill(thing["spec"], {"volumeMode": "Filesystem"})
        thing["status"] = {"phase": "Pending"}
    elif resource.model is None:
        custom.fill(resource.kind, thing)


def carry_over(resource: Resource, thing: Object, before: Object) -> None:
    """Keep what the cluster has chosen, where a change does not say it."""
    chosen = {SERVICES: ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"), CLAIMS: ("volumeName",)}
    for key in chosen.get(resource, ()):
        if key in before.get("spec", {}):
            thing.setdefault("spec", {}).setdefault(key, before["spec"][key])


def _fill(thing: Object, values: Object) -> None:
    for key, value in values.items():
        thing.setdefault(key, copied(value))


def _encode_secret(thing: Object) -> None:
    plain: dict[str, str] = thing.pop("stringData", None) or {}
    for key, text in plain.items():
        thing.setdefault("data", {})[key] = base64.b64encode(text.encode()).decode()


def fill_pod(spec: Object) -> None:
    """Defaults of a pod's spec, in a pod or in a template."""
    _fill(
        spec,
        {
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "securityContext": {},
            "schedulerName": "default-scheduler",
        },
    )
    if spec.get("serviceAccountName"):
        spec.setdefault("serviceAccount", spec["serviceAccountName"])
    for container in (*(spec.get("initContainers") or []), *(spec.get("containers") or [])):
        image = container.get("image") or ""
        untagged = ":" not in image.rsplit("/", 1)[-1] or image.endswith(":latest")
        _fill(
            container,
            {
                "resources": {},
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "imagePullPolicy": "Always" if untagged and "@" not in image else "IfNotPresent",
            },
        )
        resources = container["resources"]
        for what, limit in (resources.get("limits") or {}).items():
            resources.setdefault("requests", {}).setdefault(what, limit)
        for port in container.get("ports") or []:
            port.setdefault("protocol", "TCP")
        for kind in ("readinessProbe", "livenessProbe", "startupProbe"):
            if kind in container:
                _fill(container[kind], PROBE)
                if "httpGet" in container[kind]:
                    _fill(container[kind]["httpGet"], {"path": "/", "scheme": "HTTP"})
        for variable in container.get("env") or []:
            if field := (variable.get("valueFrom") or {}).get("fieldRef"):
                field.setdefault("apiVersion", "v1")
    for volume in spec.get("volumes") or []:
        _fill_volume(volume)


def _fill_volume(volume: Object) -> None:
    modes: Any = {"configMap": 0o644, "secret": 0o644, "projected": 0o644, "downwardAPI": 0o644}
    for kind, mode in modes.items():
        if kind in volume:
            volume[kind].setdefault("defaultMode", mode)
    if len(volume) == 1:
        volume["emptyDir"] = {}


def _fill_job(thing: Object) -> None:
    spec = thing["spec"]
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    _fill(
        spec,
        {
            "parallelism": 1,
            "backoffLimit": 6,
            "completionMode": "NonIndexed",
            "suspend": False,
            "podReplacementPolicy": "TerminatingOrFailed",
            "manualSelector": False,
        },
    )
    fill_pod(spec["template"].setdefault("spec", {}))
    thing["status"] = {}


def select_own_pods(job: Object) -> None:
    """Give a job the selector and its pods the labels by which they are told; after the uid is known."""
    uid, name = job["metadata"]["uid"], job["metadata"]["name"]
    if job["spec"].get("manualSelector"):
        return
    job["spec"]["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    labels = job["spec"]["template"].setdefault("metadata", {}).setdefault("labels", {})
    for prefix in ("batch.kubernetes.io/", ""):
        labels[f"{prefix}controller-uid"] = uid
        labels[f"{prefix}job-name"] = name
    job["metadata"].setdefault("labels", {}).update(
        {key: value for key, value in labels.items() if key.endswith(("controller-uid", "job-name"))}
    )


def qos(spec: Object) -> str:
    """Guaranteed, Burstable or BestEffort."""
    resources = [container.get("resources") or {} for container in spec.get("containers") or []]
    if not any(one.get("requests") or one.get("limits") for one in resources):
        return "BestEffort"
    whole = all(
        all(
            what in (one.get("limits") or {}) and one["limits"][what] == one["requests"][what]
            for what in ("cpu", "memory")
        )
        for one in resources
    )
    return "Guaranteed" if whole else "Burstable"
