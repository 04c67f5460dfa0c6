"""How a trainer and the engines that swing with it come to the same GPUs.

A device plugin gives a GPU to one container, so two pods cannot both ask for it. With `claim` (dynamic resource
allocation, resource.k8s.io/v1) one ResourceClaim a trainer node holds a request for each swing engine of that node; the
engine's container uses its own request, the trainer's all of them, and the scheduler puts every pod that uses a claim
where its devices are. With `visible` only the engines ask; the trainer goes to their node and sees all its GPUs.
"""

from __future__ import annotations

import copy

from agentrl.cluster.kubernetes.config import GpuSharing
from agentrl.cluster.kubernetes.pods import SWING, beside
from agentrl.cluster.kubernetes.site import Object, Site
from agentrl.cluster.kubernetes.workload import Workload
from agentrl.kubernetes.merge import merged

_CLAIM = "gpus"


def claim_of(site: Site, node: int) -> str:
    """Name of the claim of a trainer node."""
    return site.name("gpus", node)


def claims(site: Site, workload: Workload) -> list[Object]:
    """One ResourceClaim a trainer node, for sharing `claim`."""
    return [_claim(site, workload, node) for node in range(workload.kubernetes.trainer.nodes)]


def _claim(site: Site, workload: Workload, node: int) -> Object:
    kubernetes = workload.kubernetes
    devices = {"deviceClassName": kubernetes.gpu_device_class, "count": workload.gpus_per_engine}
    on_node = range(node * _per_node(workload), (node + 1) * _per_node(workload))
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": site.metadata(claim_of(site, node), "gpus"),
        "spec": {"devices": {"requests": [{"name": f"engine-{index}", "exactly": devices} for index in on_node]}},
    }


def _per_node(workload: Workload) -> int:
    return workload.num_swing // workload.kubernetes.trainer.nodes


def engine_with_gpus(template: Object, site: Site, workload: Workload, index: int) -> Object:
    """The template of engine `index`, with what it shares with the trainer, if it does."""
    if workload.sharing is None or index >= workload.num_swing:
        return template
    marked = merged(template, {"metadata": {"labels": {SWING: "true"}}})
    if workload.sharing is GpuSharing.visible:
        return marked
    return _on_claim(marked, workload, claim_of(site, index // _per_node(workload)), request=f"engine-{index}")


def trainer_with_gpus(template: Object, site: Site, workload: Workload, node: int) -> Object:
    """The template of trainer node `node`, with the GPUs of the swing engines."""
    if workload.sharing is None:
        return template
    if workload.sharing is GpuSharing.claim:
        return _on_claim(template, workload, claim_of(site, node), request=None)
    made = _without_request(template, workload)
    container = made["spec"]["containers"][0]
    container["env"] = [*container["env"], {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    return merged(made, {"spec": {"affinity": {"podAffinity": beside(site.select(**{SWING: "true"}))}}})


def _on_claim(template: Object, workload: Workload, claim: str, *, request: str | None) -> Object:
    made = _without_request(template, workload)
    use = {"name": _CLAIM} if request is None else {"name": _CLAIM, "request": request}
    made["spec"]["containers"][0]["resources"]["claims"] = [use]
    made["spec"]["resourceClaims"] = [{"name": _CLAIM, "resourceClaimName": claim}]
    return made


def _without_request(template: Object, workload: Workload) -> Object:
    """A copy that asks the device plugin for no GPU."""
    made = copy.deepcopy(template)
    for amounts in ("requests", "limits"):
        made["spec"]["containers"][0]["resources"][amounts].pop(workload.kubernetes.gpu_resource, None)
    return made
