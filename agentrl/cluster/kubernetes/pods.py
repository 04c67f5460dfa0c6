"""The pod template of a role: hardened, sized and placed as the configuration says.

Every container runs as an ordinary user on a read-only root, without capabilities and under the runtime's seccomp
profile; only the controller gets a ServiceAccount token. /tmp and /dev/shm are the pod's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import yaml

from agentrl.cluster.kubernetes.config import KubernetesConfig, PodConfig
from agentrl.cluster.kubernetes.site import Object, Site, component
from agentrl.cluster.kubernetes.workload import Workload
from agentrl.errors import UserError
from agentrl.kubernetes.merge import merged
from agentrl.kubernetes.names import ROLE
from agentrl.kubernetes.strict import pod_template_problems, unknown_fields

HOSTNAME = "kubernetes.io/hostname"
RUNS_VOLUME = "runs"
SWING = "agentrl.dev/swing"
"""On the pods of engines whose GPUs the trainer uses too."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """What a pod runs."""

    role: str
    argv: list[str]
    env: Mapping[str, str | Object] = field(default_factory=dict)
    """A value is text, or where it comes from (valueFrom)."""
    port: int | None = None
    health: str | None = None
    """Path that answers 200 once it serves."""
    grace_s: float
    """Between SIGTERM and SIGKILL."""


def pod_template(site: Site, workload: Workload, program: Program, *, restart: str) -> Object:
    """Template of a role's pods, without GPUs that are shared, and before the user's overrides."""
    kubernetes = workload.kubernetes
    role = component(program.role)
    pod = workload.pod(role)
    spec: Object = {
        "restartPolicy": restart,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": max(1, round(program.grace_s)),
        "dnsConfig": {"options": [{"name": "ndots", "value": "1"}]},
        "securityContext": security_of_pod(kubernetes.run_as_user),
        "containers": [_container(workload, program, role, pod)],
        "volumes": [
            {"name": RUNS_VOLUME, "persistentVolumeClaim": {"claimName": kubernetes.volume.claim}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }
    placed = _placement(site, workload, role, pod)
    labels = site.labels(program.role)
    return {"metadata": {"labels": labels}, "spec": {**spec, **placed}}


def security_of_pod(user: int) -> Object:
    return {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def security_of_container() -> Object:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def _container(workload: Workload, program: Program, role: str, pod: PodConfig) -> Object:
    amounts = {"cpu": f"{pod.cpus:g}", "memory": f"{pod.memory_mb}Mi"}
    if gpus := workload.gpus(role):
        amounts[workload.kubernetes.gpu_resource] = str(gpus)
    env = {"HOME": "/tmp", **program.env}
    container: Object = {
        "name": role,
        "image": workload.image(role),
        "command": program.argv,
        "env": [_variable(name, value) for name, value in env.items()],
        "resources": {"requests": amounts, "limits": dict(amounts)},
        "securityContext": security_of_container(),
        "volumeMounts": [
            {"name": RUNS_VOLUME, "mountPath": workload.mount},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    if program.port is not None:
        container["ports"] = [{"name": "http", "containerPort": program.port}]
    if program.health is not None:
        # Readiness only: whether an engine that does not answer is given up is the controller's decision.
        container["readinessProbe"] = {
            "httpGet": {"path": program.health, "port": "http"},
            "periodSeconds": 2,
            "timeoutSeconds": 5,
        }
    return container


def _variable(name: str, value: str | Object) -> Object:
    return {"name": name, "value": value} if isinstance(value, str) else {"name": name, "valueFrom": value}


def field_of_pod(path: str) -> Object:
    """Where an environment variable comes from: a field of its own pod."""
    return {"fieldRef": {"fieldPath": path}}


def _placement(site: Site, workload: Workload, role: str, pod: PodConfig) -> Object:
    kubernetes = workload.kubernetes
    uses_gpus = workload.gpus(role) > 0 or (role == "trainer" and workload.shared_gpus)
    placed: Object = {}
    if pod.node_selector:
        placed["nodeSelector"] = dict(_pair(text, "node_selector") for text in pod.node_selector)
    tolerations = [toleration(text) for text in pod.tolerations]
    if uses_gpus:
        tolerations.append({"key": kubernetes.gpu_resource, "operator": "Exists", "effect": "NoSchedule"})
    if tolerations:
        placed["tolerations"] = tolerations
    if pod.priority_class is not None:
        placed["priorityClassName"] = pod.priority_class
    if kubernetes.pull_secrets:
        placed["imagePullSecrets"] = [{"name": name} for name in kubernetes.pull_secrets]
    affinity: Object = {}
    if not uses_gpus:
        affinity["nodeAffinity"] = _away_from_gpus(kubernetes)
    if workload.one_node and role != "controller":
        affinity["podAffinity"] = beside(site.select(**{ROLE: "controller"}))
    return {**placed, "affinity": affinity} if affinity else placed


def beside(selector: Object) -> Object:
    """On the node of the pods that `selector` matches."""
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": selector, "topologyKey": HOSTNAME}],
    }


def _away_from_gpus(kubernetes: KubernetesConfig) -> Object:
    """Preferred, not required: a cluster may have GPU nodes only."""
    # Set on GPU nodes by NVIDIA's GPU feature discovery: nvidia.com/gpu.present.
    absent = {"matchExpressions": [{"key": f"{kubernetes.gpu_resource}.present", "operator": "DoesNotExist"}]}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": absent}]}


def _pair(text: str, setting: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise UserError(f"cluster.kubernetes: {setting}: {text!r} is not label=value")
    return key, value


def toleration(text: str) -> Object:
    """`key=value:Effect`, `key:Effect` or `key`, as kubectl writes taints. Raises UserError."""
    taint, _, effect = text.partition(":")
    key, equals, value = taint.partition("=")
    if not key or effect not in ("", "NoSchedule", "PreferNoSchedule", "NoExecute"):
        raise UserError(
            f"cluster.kubernetes: tolerations: {text!r} is not key=value:Effect",
            hint="Effect is NoSchedule, PreferNoSchedule or NoExecute",
        )
    made = {"key": key, "operator": "Equal", "value": value} if equals else {"key": key, "operator": "Exists"}
    return {**made, "effect": effect} if effect else made


def overridden(template: Object, pod: PodConfig, where: str) -> Object:
    """The template with the user's changes on it. Raises UserError, with the path of what is wrong."""
    if pod.overrides is None:
        return template
    setting = f"cluster.kubernetes.{where}.overrides"
    try:
        patch = yaml.safe_load(pod.overrides)
    except yaml.YAMLError as error:
        raise UserError(f"{setting}: {' '.join(str(error).split())}") from error
    if not isinstance(patch, dict):
        raise UserError(f"{setting}: not a map", hint="it has the keys metadata and spec of a pod template")
    if unknown := list(unknown_fields("V1PodTemplateSpec", patch)):
        raise UserError(f"{setting}: {unknown[0]}")
    changed = merged(template, patch)
    if wrong := pod_template_problems(changed):
        raise UserError(f"{setting}: {wrong[0]}")
    return changed
