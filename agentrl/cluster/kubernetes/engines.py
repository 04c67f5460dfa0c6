"""One engine as an object: a StatefulSet of one pod, a LeaderWorkerSet over several nodes, or a bare pod."""

from __future__ import annotations

from dataclasses import replace

from agentrl.cluster.kubernetes.config import EngineKind
from agentrl.cluster.kubernetes.gpus import engine_with_gpus
from agentrl.cluster.kubernetes.pods import Program, overridden, pod_template
from agentrl.cluster.kubernetes.queues import queued
from agentrl.cluster.kubernetes.site import Object, Site
from agentrl.cluster.kubernetes.workload import Workload
from agentrl.kubernetes.names import EPOCH, ROLE, RUN

_GROUP_PORT = 20000
ATTEMPT = "agentrl.dev/attempt"
"""Tells the pods of one start of a role from those of another."""


def engine_objects(site: Site, workload: Workload, program: Program, *, attempt: int) -> list[Object]:
    """What one start of an engine is made of; `program.role` is engine-N."""
    index = int(program.role.rpartition("-")[2])
    kubernetes = workload.kubernetes
    kind = kubernetes.engine_kind
    if kubernetes.engine.nodes > 1:
        program = _over_nodes(program, kubernetes.engine.nodes)
    restart = "Never" if kind is EngineKind.pod else "Always"
    template = pod_template(site, workload, program, restart=restart)
    template = engine_with_gpus(template, site, workload, index)
    template = overridden(template, kubernetes.engine, "engine")
    template["metadata"]["labels"][ATTEMPT] = str(attempt)
    metadata = site.metadata(site.name(program.role, attempt), program.role)
    makers = {
        EngineKind.pod: _pod,
        EngineKind.statefulset: _stateful_set,
        EngineKind.leaderworkerset: _leader_worker_set,
    }
    return [queued(makers[kind](metadata, template, workload), kubernetes.queue)]


def _pod(metadata: Object, template: Object, workload: Workload) -> Object:
    labels = {**template["metadata"]["labels"], **metadata["labels"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template["metadata"], **metadata, "labels": labels},
        "spec": template["spec"],
    }


def _stateful_set(metadata: Object, template: Object, workload: Workload) -> Object:
    labels = template["metadata"]["labels"]
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata,
        "spec": {
            "replicas": 1,
            # No headless service: the controller reaches the pod at its address.
            "selector": {"matchLabels": {key: labels[key] for key in (ROLE, ATTEMPT)} | _run_labels(labels)},
            "template": template,
        },
    }


def _leader_worker_set(metadata: Object, template: Object, workload: Workload) -> Object:
    worker = {**template, "spec": {**template["spec"], "containers": [_without_probe(template)]}}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": metadata,
        "spec": {
            "replicas": 1,
            "leaderWorkerTemplate": {
                "size": workload.kubernetes.engine.nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": template,
                "workerTemplate": worker,
            },
        },
    }


def _run_labels(labels: dict[str, str]) -> dict[str, str]:
    return {key: labels[key] for key in labels if key in (RUN, EPOCH)}


def _without_probe(template: Object) -> Object:
    """Only the leader serves HTTP."""
    return {name: value for name, value in template["spec"]["containers"][0].items() if name != "readinessProbe"}


def _over_nodes(program: Program, nodes: int) -> Program:
    """SGLang's arguments for one server over several nodes; LeaderWorkerSet sets the variables."""
    argv = [
        *program.argv,
        "--nnodes", str(nodes),
        "--node-rank", "$(LWS_WORKER_INDEX)",
        "--dist-init-addr", f"$(LWS_LEADER_ADDRESS):{_GROUP_PORT}",
    ]  # fmt: skip
    return replace(program, argv=argv)
