"""The rules of the lint about runs in a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from agentrl.cluster.config import ClusterBackend, ControllerPlace
from agentrl.cluster.kubernetes.config import EngineKind, GpuSharing, KubernetesConfig, TrainerKind
from agentrl.config.fields import schema
from agentrl.config.kubernetes import in_cluster, workload_of
from agentrl.config.lint import Finding, LintFacts, error, warning
from agentrl.config.schema import JobConfig
from agentrl.inference.config import EngineBackend, Router

_K = "cluster.kubernetes"


def paths_are_in_pods(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """Pods see their image and the volume of the runs, and no folder of the machine that launches."""
    if not in_cluster(config):
        return
    paths = {
        "cluster.runs_dir": config.cluster.runs_dir,
        "model.path": config.model.path,
        "tasks.path": config.tasks.path,
    }
    for key, path in paths.items():
        if path is not None and not path.startswith("/"):
            yield error(key, f"{path} is no absolute path in the pods", "name a folder of the image or of the volume")


def engine_spread(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """One server over several nodes is SGLang's, in equal parts, as a LeaderWorkerSet."""
    if not in_cluster(config):
        return
    kubernetes, inference = config.cluster.kubernetes, config.inference
    nodes, gpus = kubernetes.engine.nodes, inference.sglang.gpus_per_engine
    if nodes == 1:
        return
    if inference.backend is not EngineBackend.sglang:
        yield error(f"{_K}.engine.nodes", f"{nodes} needs inference.backend sglang", "set it to 1")
    elif gpus % nodes:
        yield error(f"{_K}.engine.nodes", f"{gpus} GPUs of an engine do not divide by {nodes} nodes", "change one")
    if kubernetes.engine_kind not in (EngineKind.auto, EngineKind.leaderworkerset):
        kind = kubernetes.engine_kind.name
        yield error(f"{_K}.engine_kind", f"{kind} has one pod, and engine.nodes is {nodes}", "choose leaderworkerset")


def router_is_elsewhere(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """A router that agentrl starts is a process of one machine: in a cluster it is a Deployment of the user's."""
    inference = config.inference
    if in_cluster(config) and inference.router is Router.sglang and inference.router_url is None:
        yield error(
            "inference.router", "no router is started in a cluster", "set inference.router_url, or leave it out"
        )


def trainer_spread(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """Each node of the trainer runs as many ranks as the others."""
    nodes, ranks = config.cluster.kubernetes.trainer.nodes, config.trainer.world_size
    if in_cluster(config) and ranks % nodes:
        yield error(f"{_K}.trainer.nodes", f"{ranks} ranks do not divide by {nodes} nodes", "change trainer.world_size")


def shared_gpus(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """Swing engines and trainer nodes meet on the same nodes, each trainer node with as many engines."""
    if not in_cluster(config):
        return
    workload, kubernetes = workload_of(config), config.cluster.kubernetes
    if not workload.shared_gpus:
        return
    nodes = kubernetes.trainer.nodes
    if workload.num_swing % nodes:
        message = f"{workload.num_swing} swing engines do not divide by {nodes} trainer nodes"
        yield error(f"{_K}.trainer.nodes", message, "change schedule.swing or the nodes")
    if kubernetes.engine.nodes > 1:
        yield error(f"{_K}.engine.nodes", "an engine over several nodes cannot swing", "set schedule.swing to none")
    if kubernetes.trainer.gpus:
        message = "swing trainers use the engines' GPUs, and these would be others"
        yield error(f"{_K}.trainer.gpus", message, "leave it out, or set schedule.swing to none")
    if kubernetes.trainer_kind is TrainerKind.trainjob and kubernetes.gpu_sharing is not GpuSharing.visible:
        message = "a TrainJob takes no ResourceClaims"
        yield error(f"{_K}.trainer_kind", message, "choose jobset, or gpu_sharing visible")
    if nodes > 1 and kubernetes.trainer_kind is TrainerKind.job and kubernetes.gpu_sharing is not GpuSharing.visible:
        message = f"the {nodes} pods of a Job would share one ResourceClaim, and so one node"
        yield error(f"{_K}.trainer_kind", message, "choose jobset, or gpu_sharing visible")
    if kubernetes.gpu_sharing is GpuSharing.visible and nodes > 1:
        message = "visible puts all trainer pods on the node of any swing engine"
        yield error(f"{_K}.gpu_sharing", message, "choose claim, or one trainer node")


def trainjob_takes_all(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """A TrainJob's runtime makes the pods, and lets only some of them be changed."""
    kubernetes = config.cluster.kubernetes
    if not in_cluster(config) or kubernetes.trainer_kind is not TrainerKind.trainjob:
        return
    for name in ("priority_class", "overrides"):
        if getattr(kubernetes.trainer, name) is not None:
            yield error(f"{_K}.trainer.{name}", "a TrainJob does not take it", "set it in the training runtime")


def ignored_kubernetes(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """Settings of a cluster that is not used are a misunderstanding."""
    cluster = config.cluster
    if cluster.backend is ClusterBackend.local and cluster.kubernetes != KubernetesConfig():
        yield warning(_K, "is ignored: cluster.backend is local", "choose cluster=kubernetes")
    if cluster.backend is ClusterBackend.local and cluster.controller is ControllerPlace.local:
        yield warning("cluster.controller", "is ignored: cluster.backend is local", "remove it")
    if not in_cluster(config):
        return
    pod = cluster.kubernetes.controller
    for name in ("nodes", "gpus"):
        if getattr(pod, name) != schema().leaves[f"{_K}.controller.{name}"].default:
            yield warning(f"{_K}.controller.{name}", "is ignored: the controller is one pod", "remove it")


KUBERNETES_RULES: tuple[Callable[[JobConfig, LintFacts], Iterator[Finding]], ...] = (
    paths_are_in_pods,
    engine_spread,
    router_is_elsewhere,
    trainer_spread,
    shared_gpus,
    trainjob_takes_all,
    ignored_kubernetes,
)
