"""What a cluster lacks for a run: asked of the API server, which starts and keeps nothing of it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.cluster.kubernetes.config import GpuSharing
from agentrl.cluster.kubernetes.rendered import Rendered
from agentrl.cluster.kubernetes.rights import submitter_rules
from agentrl.cluster.kubernetes.site import Object
from agentrl.cluster.kubernetes.workload import Workload, made_kinds
from agentrl.kubernetes.client import KubernetesClient
from agentrl.kubernetes.errors import AlreadyExists, Forbidden, KubernetesError, NotFound, grant
from agentrl.kubernetes.resources import (
    ACCESS_REVIEWS,
    CLAIMS,
    JOBS,
    NODES,
    QUOTAS,
    STORAGE_CLASSES,
    resource_of,
)

_AT_ONCE = 16


@dataclass(frozen=True, order=True)
class Missing:
    """One thing that is not there."""

    what: str
    fix: str
    """The command that would grant it, or what to change."""


async def missing(
    client: KubernetesClient, rendered: Rendered, workload: Workload, groups: frozenset[str]
) -> list[Missing]:
    """Rights, kinds, the namespace's quotas, GPUs, the volume, and what admission says to each object."""
    found = _kinds(workload, groups)
    for part in (missing_rights, _volume, _gpus, _quota, _dry_run):
        found += await part(client, rendered, workload)
    return list(dict.fromkeys(found))


def _kinds(workload: Workload, groups: frozenset[str]) -> list[Missing]:
    wanted = [kind for kind in made_kinds(workload) if kind.group and kind.group not in groups]
    found = [Missing(f"the cluster does not serve {kind.plural}.{kind.group}", _install(kind.group)) for kind in wanted]
    if workload.kubernetes.queue is not None and "kueue.x-k8s.io" not in groups:
        found.append(Missing("cluster.kubernetes.queue is set and there is no Kueue", _install("kueue.x-k8s.io")))
    return found


_PROJECTS = {
    "jobset.x-k8s.io": "https://jobset.sigs.k8s.io/docs/installation",
    "leaderworkerset.x-k8s.io": "https://lws.sigs.k8s.io/docs/installation",
    "trainer.kubeflow.org": "https://www.kubeflow.org/docs/components/trainer/operator-guides/installation",
    "kueue.x-k8s.io": "https://kueue.sigs.k8s.io/docs/installation",
    "resource.k8s.io": "enable dynamic resource allocation, or set cluster.kubernetes.gpu_sharing=visible",
}


def _install(group: str) -> str:
    return f"see {_PROJECTS[group]}" if _PROJECTS[group].startswith("http") else _PROJECTS[group]


async def missing_rights(client: KubernetesClient, rendered: Rendered, workload: Workload) -> list[Missing]:
    """Rights of whoever asks: what it takes to submit, which includes all that the controller gets."""
    role = next(obj for obj in rendered.sent if obj["kind"] == "Role")
    asked = sorted({right for one in submitter_rules(role["rules"]) for right in _single(one)})
    slots = asyncio.Semaphore(_AT_ONCE)

    async def allowed(right: tuple[str, str, str]) -> bool:
        verb, resource, group = right
        plural, _, subresource = resource.partition("/")
        attributes = {"namespace": client.namespace, "verb": verb, "group": group, "resource": plural}
        attributes |= {"subresource": subresource} if subresource else {}
        review = {
            "apiVersion": ACCESS_REVIEWS.api_version,
            "kind": ACCESS_REVIEWS.kind,
            "spec": {"resourceAttributes": attributes},
        }
        async with slots:
            return bool((await client.create(ACCESS_REVIEWS, review))["status"].get("allowed"))

    answers = await asyncio.gather(*(allowed(right) for right in asked))
    return [
        Missing(f"you may not {verb} {resource}", grant(verb, resource, group, "YOU", client.namespace))
        for (verb, resource, group), yes in zip(asked, answers, strict=True)
        if not yes
    ]


def _single(one: Object) -> Iterable[tuple[str, str, str]]:
    return (
        (verb, resource, group) for group in one["apiGroups"] for resource in one["resources"] for verb in one["verbs"]
    )


async def _volume(client: KubernetesClient, rendered: Rendered, workload: Workload) -> list[Missing]:
    """A claim that is there must be bound in the mode that is meant; one that is made needs a storage class."""
    volume = workload.kubernetes.volume
    claim = await client.find(CLAIMS, volume.claim)
    if claim is not None:
        modes = claim["spec"].get("accessModes") or []
        if volume.access.value not in modes:
            fix = f"set cluster.kubernetes.volume.access={modes[0] if modes else '...'}, or name another claim"
            return [Missing(f"PersistentVolumeClaim {volume.claim} is not {volume.access.value}", fix)]
        return []
    try:
        classes = (await client.list_all(STORAGE_CLASSES)).items
    except Forbidden:
        return []  # who may not look may still ask for a volume
    names = [one["metadata"]["name"] for one in classes]
    if volume.storage_class is None:
        if any(_is_default(one) for one in classes):
            return []
        return [Missing("the cluster has no default StorageClass", f"set volume.storage_class to one of {names}")]
    if volume.storage_class in names:
        return []
    return [Missing(f"there is no StorageClass {volume.storage_class}", f"choose one of {', '.join(names) or 'none'}")]


def _is_default(storage_class: Object) -> bool:
    annotations = storage_class["metadata"].get("annotations") or {}
    return annotations.get("storageclass.kubernetes.io/is-default-class") == "true"


async def _gpus(client: KubernetesClient, rendered: Rendered, workload: Workload) -> list[Missing]:
    """Nodes that match a role's selector must offer the GPUs of a pod, and all together those of the job."""
    if workload.sharing is GpuSharing.claim:
        return []  # devices of a claim are not in a node's allocatable
    try:
        nodes = (await client.list_all(NODES)).items
    except Forbidden:
        return []
    found, resource = [], workload.kubernetes.gpu_resource
    for role, count in (("engine", workload.num_engines), ("trainer", 1)):
        each = workload.gpus(role)
        if not each:
            continue
        selector = dict(text.split("=", 1) for text in workload.pod(role).node_selector)
        offers = [_offer(node, resource) for node in nodes if _matches(node, selector)]
        wanted = count * workload.pod(role).nodes
        if sum(offer // each for offer in offers) < wanted:
            what = f"{wanted} {role} pods of {each} {resource} do not fit the nodes that match: {sorted(offers)}"
            found.append(Missing(what, f"change cluster.kubernetes.{role}.node_selector, or add nodes"))
    return found


def _matches(node: Object, selector: dict[str, str]) -> bool:
    labels = node["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in selector.items())


def _offer(node: Object, resource: str) -> int:
    return int((node.get("status", {}).get("allocatable") or {}).get(resource, 0))


async def _quota(client: KubernetesClient, rendered: Rendered, workload: Workload) -> list[Missing]:
    """What the job's own pods ask for, against what each quota has left."""
    asked: defaultdict[str, float] = defaultdict(float)
    for template, number in _templates(rendered.sent + rendered.made):
        for container in template["spec"]["containers"]:
            resources = container.get("resources") or {}
            for side in ("requests", "limits"):
                for name, amount in (resources.get(side) or {}).items():
                    asked[f"{side}.{name}"] += number * quantity(amount)
        asked["pods"] += number
    try:
        quotas = (await client.list_all(QUOTAS)).items
    except Forbidden:
        return []
    found = []
    for quota in quotas:
        status = quota.get("status") or {}
        for name, hard in (status.get("hard") or {}).items():
            key = f"requests.{name}" if name in ("cpu", "memory") else name
            left = quantity(hard) - quantity((status.get("used") or {}).get(name, "0"))
            if key in asked and asked[key] > left:
                what = f"quota {quota['metadata']['name']} has {left:g} of {name} left, the job asks for {asked[key]:g}"
                found.append(Missing(what, f"kubectl edit resourcequota {quota['metadata']['name']}"))
    return found


def _templates(objects: Sequence[Object]) -> Iterable[tuple[Object, int]]:
    """Pod templates, and how many pods are made of each."""
    for obj in objects:
        kind, spec = obj["kind"], obj.get("spec") or {}
        if kind == "Pod":
            yield obj, 1
        elif kind == "StatefulSet":
            yield spec["template"], spec["replicas"]
        elif kind == "Job":
            yield spec["template"], spec.get("parallelism", 1)
        elif kind == "JobSet":
            for group in spec["replicatedJobs"]:
                yield group["template"]["spec"]["template"], group["template"]["spec"]["parallelism"]
        elif kind == "LeaderWorkerSet":
            yield spec["leaderWorkerTemplate"]["leaderTemplate"], spec["leaderWorkerTemplate"]["size"]


_SUFFIXES = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def quantity(text: Any) -> float:
    """A Kubernetes quantity as a number: 500m, 4096Mi, 2."""
    written = str(text)
    suffix = next((one for one in sorted(_SUFFIXES, key=len, reverse=True) if written.endswith(one)), "")
    return float(written.removesuffix(suffix)) * _SUFFIXES.get(suffix, 1.0)


async def _dry_run(client: KubernetesClient, rendered: Rendered, workload: Workload) -> list[Missing]:
    """Each object as the API server and its admission would take it. What is there already is no problem."""
    found = []
    for obj in rendered.sent + rendered.made:
        resource, name = resource_of(obj), obj["metadata"]["name"]
        try:
            await client.create(resource, obj, dry_run=True)
        except AlreadyExists:
            if resource is JOBS:
                found.append(Missing(f"Job {name} exists", f"agentrl stop -k {name}"))
        except NotFound:
            continue  # a kind that is not served is said above; else the namespace is not there
        except Forbidden:
            continue  # said above, with its grant
        except KubernetesError as error:
            found.append(Missing(f"{resource.kind} {name}: {error.message}", error.hint or "see its field"))
    return found
