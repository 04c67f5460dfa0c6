"""Where the processes of a run live, by its configuration; and what a controller that is a pod tells the cluster."""

from __future__ import annotations

import os
from dataclasses import dataclass
from random import SystemRandom

from agentrl.cluster.cluster import Cluster
from agentrl.cluster.kubernetes.site import Object, Site, owner_reference
from agentrl.cluster.local import LocalCluster
from agentrl.config.kubernetes import in_cluster, workload_of
from agentrl.config.schema import JobConfig
from agentrl.controller.lifecycle.records import LedgerRecords
from agentrl.controller.lifecycle.run_directory import RunDirectory
from agentrl.errors import UserError
from agentrl.kubernetes.client import KubernetesClient
from agentrl.kubernetes.connection import connect
from agentrl.ledger.ledger import Ledger

_API_OUTAGE_S = 600.0
"""How long a controller asks an API server that does not answer: as long as an upgrade of a control plane takes."""


@dataclass(frozen=True)
class ControllerPod:
    """What a controller's pod knows of itself, from the environment that its Job gives it."""

    namespace: str
    ip: str
    job: str
    job_uid: str

    @classmethod
    def here(cls) -> ControllerPod:
        """Raises UserError outside such a pod."""
        names = ("AGENTRL_NAMESPACE", "AGENTRL_POD_IP", "AGENTRL_JOB", "AGENTRL_JOB_UID")
        values = [os.environ.get(name, "") for name in names]
        if not all(values):
            raise UserError(
                "cluster.backend: this controller is in no pod of a run",
                hint="`agentrl launch` sends it to the cluster",
            )
        return cls(*values)

    @property
    def owner(self) -> Object:
        """Reference to the Job of this pod."""
        return owner_reference(self.job, self.job_uid)


async def connect_to_cluster() -> KubernetesClient:
    """A client of the cluster that this controller's pod is in. Raises UserError outside one."""
    return KubernetesClient(await connect(namespace=ControllerPod.here().namespace), retry_for_s=_API_OUTAGE_S)


async def open_cluster(run: RunDirectory, config: JobConfig, ledger: Ledger) -> Cluster:
    """The cluster of a run, without what earlier controllers of it have left there."""
    if not in_cluster(config):
        return LocalCluster(LedgerRecords(ledger))
    from agentrl.cluster.kubernetes.cluster import KubernetesCluster

    pod = ControllerPod.here()
    client = await connect_to_cluster()
    site = Site(run=run.name, namespace=pod.namespace, epoch=ledger.epoch, owner=pod.owner)
    cluster = KubernetesCluster(client, site, workload_of(config), pod_ip=pod.ip, entropy=SystemRandom())
    await cluster.open()
    return cluster
