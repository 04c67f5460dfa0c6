"""The trainer as an object: an Indexed Job, a JobSet or a TrainJob, each torchrun on its nodes.

What a rank knows of the others it knows from torchrun's environment (PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR,
PET_MASTER_PORT); with one node torchrun needs none of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from agentrl.cluster.kubernetes.config import GpuSharing, TrainerKind
from agentrl.cluster.kubernetes.engines import ATTEMPT
from agentrl.cluster.kubernetes.gpus import trainer_with_gpus
from agentrl.cluster.kubernetes.pods import Program, field_of_pod, overridden, pod_template
from agentrl.cluster.kubernetes.queues import queued
from agentrl.cluster.kubernetes.site import Object, Site
from agentrl.cluster.kubernetes.workload import Workload
from agentrl.kubernetes.names import ROLE

_RENDEZVOUS_PORT = 29500
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_NODES = "node"
"""Name of the replicated job of a JobSet, and of the container that a TrainJob's runtime runs."""


def torchrun_arguments(world_size: int, nodes: int) -> list[str]:
    """Arguments of torchrun on each node; with several the rest comes from its environment."""
    if nodes == 1:
        return ["--standalone", "--nproc-per-node", str(world_size)]
    return ["--nproc-per-node", str(world_size // nodes)]


@dataclass(frozen=True, kw_only=True)
class _Start:
    """One start of a role, and what all its pods have in common."""

    site: Site
    workload: Workload
    program: Program
    attempt: int

    @property
    def name(self) -> str:
        return self.site.name(self.program.role, self.attempt)

    @property
    def metadata(self) -> Object:
        return self.site.metadata(self.name, self.program.role)

    @property
    def nodes(self) -> int:
        return self.workload.kubernetes.trainer.nodes

    def template(self, env: dict[str, str | Object], node: int = 0) -> Object:
        """Of the pods that run trainer node `node`."""
        program = replace(self.program, env={**self.program.env, **env})
        template = pod_template(self.site, self.workload, program, restart="Never")
        if self.program.role == "trainer":
            template = trainer_with_gpus(template, self.site, self.workload, node)
        template = overridden(template, self.workload.kubernetes.trainer, "trainer")
        template["metadata"]["labels"][ATTEMPT] = str(self.attempt)
        return template


def trainer_objects(site: Site, workload: Workload, program: Program, *, attempt: int) -> list[Object]:
    """What one start of the trainer is made of."""
    start = _Start(site=site, workload=workload, program=program, attempt=attempt)
    kind = workload.kubernetes.trainer_kind
    if kind is TrainerKind.job:
        env = _group_env(start.nodes, f"{start.name}-0.{start.name}", field_of_pod(_INDEX))
        made = [_job(start, start.template(env), start.nodes), *_service(start)]
    elif kind is TrainerKind.jobset:
        made = [_jobset(start)]
    else:
        made = [_trainjob(start)]
    return [queued(obj, workload.kubernetes.queue) for obj in made]


def model_objects(site: Site, workload: Workload, program: Program, *, attempt: int) -> list[Object]:
    """The process that makes the starting weights."""
    start = _Start(site=site, workload=workload, program=program, attempt=attempt)
    return [queued(_job(start, start.template({}), 1), workload.kubernetes.queue)]


def _group_env(nodes: int, master: str, rank: str | Object) -> dict[str, str | Object]:
    if nodes == 1:
        return {}
    return {
        "PET_NNODES": str(nodes),
        "PET_NODE_RANK": rank,
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": str(_RENDEZVOUS_PORT),
    }


def _job(start: _Start, template: Object, nodes: int) -> Object:
    if nodes > 1:
        template = {**template, "spec": {**template["spec"], "subdomain": start.name}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": start.metadata, "spec": _job_spec(template, nodes)}


def _job_spec(template: Object, nodes: int) -> Object:
    """One failed rank ends the job: the controller decides whether and with what it starts again."""
    return {
        "completions": nodes,
        "parallelism": nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": template,
    }


def _service(start: _Start) -> list[Object]:
    """Names for the pods of a Job, known before they are ready: ranks meet while they start."""
    if start.nodes == 1:
        return []
    labels = {ROLE: start.program.role, ATTEMPT: str(start.attempt)}
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": start.site.select(**labels)["matchLabels"],
        "ports": [{"name": "rendezvous", "port": _RENDEZVOUS_PORT}],
    }
    return [{"apiVersion": "v1", "kind": "Service", "metadata": start.metadata, "spec": spec}]


def _jobset(start: _Start) -> Object:
    """One replicated job of all nodes; with claims one a node, because each node has a claim of its own.

    A JobSet's pods are called JOBSET-REPLICATED-REPLICA-INDEX, in a service of the JobSet's name.
    """
    nodes = start.nodes
    apart = start.workload.sharing is GpuSharing.claim and nodes > 1
    groups = [(f"{_NODES}-{node}", 1) for node in range(nodes)] if apart else [(_NODES, nodes)]
    master = f"{start.name}-{groups[0][0]}-0-0.{start.name}"
    replicated = []
    for node, (group, size) in enumerate(groups):
        env = _group_env(nodes, master, str(node) if apart else field_of_pod(_INDEX))
        spec = _job_spec(start.template(env, node), size)
        replicated.append({"name": group, "replicas": 1, "template": {"spec": spec}})
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": start.metadata,
        "spec": {
            "failurePolicy": {"maxRestarts": 0},
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "replicatedJobs": replicated,
        },
    }


def _trainjob(start: _Start) -> Object:
    """The runtime makes the pods; what it must not decide alone is patched into them."""
    template, kubernetes = start.template({}), start.workload.kubernetes
    spec = template["spec"]
    container = spec["containers"][0]
    patched = ("nodeSelector", "affinity", "tolerations", "volumes", "securityContext", "imagePullSecrets")
    patch = {name: spec[name] for name in patched if name in spec}
    mounts = {"name": _NODES, **{name: container[name] for name in ("volumeMounts", "securityContext")}}
    pod = {"metadata": template["metadata"], "spec": {**patch, "containers": [mounts]}}
    replicated = {"name": _NODES, "template": {"spec": {"template": pod}}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": start.metadata,
        "spec": {
            "runtimeRef": {"kind": "ClusterTrainingRuntime", "name": kubernetes.trainer_runtime},
            "trainer": {
                "image": container["image"],
                "command": container["command"],
                "env": container["env"],
                "numNodes": kubernetes.trainer.nodes,
                "resourcesPerNode": container["resources"],
            },
            "runtimePatches": [
                {
                    "manager": "agentrl.dev/controller",
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [replicated]}}},
                }
            ],
        },
    }
