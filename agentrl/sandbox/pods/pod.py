"""The objects of sandboxes: their pod, and what all of a run share. Pure."""

from __future__ import annotations

import hashlib
from typing import Any, TypeAlias

from agentrl.kubernetes.names import RUN, labels, object_name
from agentrl.sandbox.config import SandboxConfig
from agentrl.sandbox.owner import SandboxOwner
from agentrl.sandbox.pods.evidence import CONTAINER
from agentrl.sandbox.pods.words import BIN, RUNNER, STATE, runner_script
from agentrl.sandbox.provider import SandboxSpec

Object: TypeAlias = dict[str, Any]

ROLE = "sandbox"
ROOT_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID")
"""What a container's root may do: enough for tar, package managers and other users, nothing for the kernel. Those of
bubblewrap's sandboxes."""
STATE_MB, TESTS_MB, LOGS_MB = 32, 32, 8
"""Space of the runner, of /tests and of /logs: in memory, so that a disk that the agent filled is not in their way."""
UNCOUNTED_MB = STATE_MB + TESTS_MB + LOGS_MB
"""What the memory limit is raised by for them."""
GRACE_S = 1
"""Until a pod that is deleted is killed. 0 would drop the object before the kubelet has said that nothing runs."""


def image_of(spec: SandboxSpec, config: SandboxConfig) -> str:
    """The container image."""
    return spec.image.reference or config.kubernetes.image


def pod(spec: SandboxSpec, config: SandboxConfig, owner: SandboxOwner, *, name: str, token: str) -> Object:
    """A sandbox's pod. `token`: this very request's, by which an object that is there already is told to be ours."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **metadata(owner, name),
            "annotations": {"agentrl.dev/token": token},
            "labels": labels(owner.run, role=ROLE, epoch=owner.epoch, episode=spec.owner),
        },
        "spec": pod_spec(spec, config, owner),
    }


def metadata(owner: SandboxOwner, name: str) -> Object:
    """Of an object of this controller's life."""
    found: Object = {"name": name, "labels": labels(owner.run, role=ROLE, epoch=owner.epoch)}
    if owner.reference is not None:
        found["ownerReferences"] = [owner.reference]
    return found


def pod_spec(spec: SandboxSpec, config: SandboxConfig, owner: SandboxOwner) -> Object:
    """What runs, within which limits, with which rights."""
    settings = config.kubernetes
    found: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_S,
        "activeDeadlineSeconds": int(settings.active_deadline_s),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "dnsConfig": {"options": [{"name": "ndots", "value": "1"}]},
        "securityContext": _pod_rights(settings.run_as_user),
        "containers": [_container(spec, config)],
        "volumes": [
            {"name": "runner", "configMap": {"name": runner_name(owner), "defaultMode": 0o555}},
            _memory("state", STATE_MB),
            _memory("tests", TESTS_MB),
            _memory("logs", LOGS_MB),
        ],
    }
    optional = {
        "runtimeClassName": settings.runtime_class,
        "priorityClassName": settings.priority_class,
        "nodeSelector": settings.node_selector,
        "tolerations": settings.tolerations,
        "imagePullSecrets": [{"name": name} for name in settings.pull_secrets],
    }
    return found | {key: value for key, value in optional.items() if value}


def _container(spec: SandboxSpec, config: SandboxConfig) -> Object:
    settings = config.kubernetes
    memory_mb = min(spec.memory_mb or config.memory_mb, config.memory_mb) + UNCOUNTED_MB
    disk_mb = min(spec.disk_mb or config.disk_mb, config.disk_mb)
    cpus = min((share for share in (spec.cpus, config.cpus) if share is not None), default=None)
    limits = {"memory": f"{memory_mb}Mi", "ephemeral-storage": f"{disk_mb}Mi"}
    requests = {
        "cpu": _cpus(min(settings.cpu_request, cpus or settings.cpu_request)),
        "memory": f"{max(int(memory_mb * min(settings.memory_request_share, 1.0)), 1)}Mi",
        "ephemeral-storage": f"{disk_mb}Mi",
    }
    found: Object = {
        "name": CONTAINER,
        "image": image_of(spec, config),
        "imagePullPolicy": settings.pull_policy.value,
        "command": ["/bin/sh", RUNNER, "pause"],
        "resources": {"limits": limits | ({"cpu": _cpus(cpus)} if cpus else {}), "requests": requests},
        "securityContext": _container_rights(settings.run_as_user),
        "volumeMounts": [
            {"name": "runner", "mountPath": BIN, "readOnly": True},
            {"name": "state", "mountPath": STATE},
            {"name": "tests", "mountPath": "/tests"},
            {"name": "logs", "mountPath": "/logs"},
        ],
    }
    if spec.image.workdir:
        found["workingDir"] = spec.image.workdir  # which the runtime makes where the image has none
    return found


def _pod_rights(user: int | None) -> Object:
    found: Object = {"seccompProfile": {"type": "RuntimeDefault"}}
    if user is not None:
        found |= {"runAsUser": user, "runAsGroup": user, "fsGroup": user, "runAsNonRoot": user != 0}
    return found


def _container_rights(user: int | None) -> Object:
    capabilities: Object = {"drop": ["ALL"]}
    if not user:
        capabilities["add"] = list(ROOT_CAPABILITIES)
    return {"allowPrivilegeEscalation": False, "privileged": False, "capabilities": capabilities}


def _memory(name: str, size_mb: int) -> Object:
    return {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": f"{size_mb}Mi"}}


def _cpus(share: float) -> str:
    return f"{max(round(share * 1000), 1)}m"


# --- what sandboxes share


def runner_name(owner: SandboxOwner) -> str:
    """Of the ConfigMap that holds the runner; another script has another name."""
    return object_name(owner.run, owner.epoch, f"runner-{hashlib.sha256(runner_script().encode()).hexdigest()[:8]}")


def runner_map(owner: SandboxOwner) -> Object:
    """The ConfigMap itself."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(owner, runner_name(owner)),
        "immutable": True,  # kubelets need not watch it
        "data": {"run": runner_script()},
    }


def network_policy(owner: SandboxOwner, *, internet: bool) -> Object:
    """Nobody reaches a sandbox, and a sandbox nobody; with `internet` it reaches everything but the link-local
    addresses that clouds serve credentials at."""
    anywhere = {"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}}, {"ipBlock": {"cidr": "::/0"}}]}
    chosen = {key: value for key, value in labels(owner.run, role=ROLE).items() if key in (RUN, "agentrl.dev/role")}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(owner, object_name(owner.run, owner.epoch, "sandboxes")),
        "spec": {
            "podSelector": {"matchLabels": chosen},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [],
            "egress": [anywhere] if internet else [],
        },
    }
