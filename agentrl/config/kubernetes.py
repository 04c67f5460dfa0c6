"""A job's configuration as the workload that its objects in a cluster are made from."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import msgspec

from agentrl import __version__
from agentrl.cluster.config import ClusterBackend, ControllerPlace
from agentrl.cluster.kubernetes.rights import rule
from agentrl.cluster.kubernetes.site import Object
from agentrl.cluster.kubernetes.workload import Submission, Workload, settled
from agentrl.config.schema import JobConfig
from agentrl.config.tree import to_text
from agentrl.controller.config import num_swing
from agentrl.inference.config import Device, EngineBackend
from agentrl.model.config import Recipe
from agentrl.sandbox.config import SandboxBackend


def in_cluster(config: JobConfig) -> bool:
    """Whether the job's processes are pods, the controller's included."""
    cluster = config.cluster
    return cluster.backend is ClusterBackend.kubernetes and cluster.controller is ControllerPlace.cluster


def workload_of(config: JobConfig) -> Workload:
    """The job's processes and their placement."""
    inference = config.inference
    on_gpus = inference.backend is EngineBackend.sglang and inference.sglang.device is Device.cuda
    return Workload(
        kubernetes=config.cluster.kubernetes,
        version=__version__,
        mount=config.cluster.runs_dir,
        stop_grace_s=config.cluster.stop_grace_s,
        num_engines=0 if inference.backend is EngineBackend.attached else inference.num_engines,
        embedded=inference.backend is EngineBackend.embedded,
        gpus_per_engine=inference.sglang.gpus_per_engine if on_gpus else 0,
        num_swing=num_swing(config.schedule.swing, inference.num_engines),
        world_size=config.trainer.world_size,
    )


def settled_config(config: JobConfig, groups: Collection[str]) -> JobConfig:
    """The job for a cluster that serves these API groups: what was `auto` is decided, for its controllers too."""
    kubernetes = settled(config.cluster.kubernetes, groups)
    return replace(config, cluster=replace(config.cluster, kubernetes=kubernetes))


def submission_of(run: str, config: JobConfig) -> Submission:
    """What is sent to the cluster of a job whose configuration is settled."""
    named = replace(config, name=run)
    return Submission(
        run=run,
        workload=workload_of(named),
        config_json=msgspec.json.format(msgspec.json.encode(named)).decode(),
        config_text=to_text(named),
        sandbox_rules=sandbox_rules(config),
        has_recipe=config.model.recipe is not Recipe.none,
    )


def sandbox_rules(config: JobConfig) -> list[Object]:
    """What the sandboxes' provider needs in the Role of its controller."""
    backend = config.sandbox.backend
    if not backend.runs_containers:
        return []
    rules = [
        rule("", ["pods"], ["get", "list", "watch", "create", "delete", "deletecollection", "patch"]),
        rule("", ["pods/exec"], ["get", "create"]),  # from 1.35 on a websocket needs create, before it get
        rule("", ["events"], ["get", "list", "watch"]),
        rule("", ["configmaps"], ["get", "list", "create", "delete", "patch"]),
        rule("networking.k8s.io", ["networkpolicies"], ["get", "list", "create", "delete"]),
    ]
    if backend is SandboxBackend.agent_sandbox:
        made = ["sandboxtemplates", "sandboxwarmpools", "sandboxclaims"]
        verbs = ["get", "list", "watch", "create", "delete", "patch"]
        rules.append(rule("extensions.agents.x-k8s.io", made, verbs))
        rules.append(rule("agents.x-k8s.io", ["sandboxes"], ["get", "list", "watch"]))
    return rules
