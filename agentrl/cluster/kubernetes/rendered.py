"""Every object that a run would be made of, before there is one."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.cluster.kubernetes.config import GpuSharing
from agentrl.cluster.kubernetes.control import controller_job, dependents, record, runs_claim
from agentrl.cluster.kubernetes.engines import engine_objects
from agentrl.cluster.kubernetes.gpus import claims
from agentrl.cluster.kubernetes.pods import Program
from agentrl.cluster.kubernetes.site import Object, Site
from agentrl.cluster.kubernetes.trainers import model_objects, torchrun_arguments, trainer_objects
from agentrl.cluster.kubernetes.workload import Submission


@dataclass(frozen=True)
class Rendered:
    """Objects of a run."""

    sent: list[Object]
    """By whoever launches, in this order."""
    made: list[Object]
    """By the controller, at its first start; commands are shortened."""


def rendered(submission: Submission, namespace: str) -> Rendered:
    """All objects of a run. Raises UserError where the user's overrides are wrong."""
    workload, run = submission.workload, submission.run
    kubernetes = workload.kubernetes
    site = Site(run=run, namespace=namespace)
    sent = [
        runs_claim(workload, namespace),
        record(site, config_json=submission.config_json, config_text=submission.config_text),
        *dependents(site, workload, submission.sandbox_rules),
        controller_job(site, workload),
    ]
    first = Site(run=run, namespace=namespace, epoch=1)
    made = claims(first, workload) if workload.sharing is GpuSharing.claim else []

    def program(role: str, *argv: str) -> Program:
        return Program(role=role, argv=[kubernetes.python, *argv], grace_s=workload.stop_grace_s)

    server = "agentrl.inference.embedded" if workload.embedded else "sglang.launch_server"
    if submission.has_recipe:
        made += model_objects(first, workload, program("model", "-m", "agentrl.model"), attempt=1)
    for index in range(workload.num_engines):
        made += engine_objects(first, workload, program(f"engine-{index}", "-m", server), attempt=1)
    torchrun = torchrun_arguments(workload.world_size, kubernetes.trainer.nodes)
    argv = ("-m", "torch.distributed.run", *torchrun, "-m", "agentrl.trainer")
    made += trainer_objects(first, workload, program("trainer", *argv), attempt=1)
    return Rendered(sent, made)


def for_gitops(objects: list[Object]) -> list[Object]:
    """What is sent, as something else applies it: the controller starts at once, and there is no owner to name yet."""
    return [{**obj, "spec": {**obj["spec"], "suspend": False}} if obj["kind"] == "Job" else obj for obj in objects]
