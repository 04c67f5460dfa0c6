"""A job's configuration as the workload that its objects in a cluster are made from."""

from __future__ import annotations

from agentrl import __version__
from agentrl.cluster.config import ClusterBackend, ControllerPlace
from agentrl.cluster.kubernetes.workload import Workload
from agentrl.config.schema import JobConfig
from agentrl.controller.config import num_swing
from agentrl.inference.config import Device, EngineBackend


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
