"""What the API serves: the table of resources, built in and custom."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True)
class Resource:
    """One kind of object.

    ``model`` names the class of the official client whose fields are the schema; None where a custom resource's
    schema in `custom` is. ``subresources`` are those that requests may name after the object.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    subresources: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    model: str | None = None

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """As error messages name it: ``pods``, ``jobs.batch``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


def _core(plural: str, kind: str, *subresources: str, namespaced: bool = True, model: str = "") -> Resource:
    return Resource("", "v1", plural, kind, namespaced, subresources, model=model or f"V1{kind}")


def _group(group: str, plural: str, kind: str, *subresources: str, namespaced: bool = True) -> Resource:
    return Resource(group, "v1", plural, kind, namespaced, subresources, model=f"V1{kind}")


def _review(group: str, plural: str, kind: str, *, namespaced: bool = False) -> Resource:
    return Resource(group, "v1", plural, kind, namespaced, verbs=("create",), model=f"V1{kind}")


NAMESPACES = _core("namespaces", "Namespace", "status", namespaced=False)
PODS = _core("pods", "Pod", "status", "log", "exec", "eviction")
CONFIG_MAPS = _core("configmaps", "ConfigMap")
SECRETS = _core("secrets", "Secret")
SERVICES = _core("services", "Service", "status")
SERVICE_ACCOUNTS = _core("serviceaccounts", "ServiceAccount", "token")
CLAIMS = _core("persistentvolumeclaims", "PersistentVolumeClaim", "status")
VOLUMES = _core("persistentvolumes", "PersistentVolume", "status", namespaced=False)
NODES = _core("nodes", "Node", "status", namespaced=False)
EVENTS = _core("events", "Event", model="CoreV1Event")
QUOTAS = _core("resourcequotas", "ResourceQuota", "status")
LIMIT_RANGES = _core("limitranges", "LimitRange")
JOBS = _group("batch", "jobs", "Job", "status")
STATEFUL_SETS = _group("apps", "statefulsets", "StatefulSet", "status", "scale")
ROLES = _group("rbac.authorization.k8s.io", "roles", "Role")
ROLE_BINDINGS = _group("rbac.authorization.k8s.io", "rolebindings", "RoleBinding")
CLUSTER_ROLES = _group("rbac.authorization.k8s.io", "clusterroles", "ClusterRole", namespaced=False)
CLUSTER_ROLE_BINDINGS = _group(
    "rbac.authorization.k8s.io", "clusterrolebindings", "ClusterRoleBinding", namespaced=False
)
NETWORK_POLICIES = _group("networking.k8s.io", "networkpolicies", "NetworkPolicy")
LEASES = _group("coordination.k8s.io", "leases", "Lease")
PRIORITY_CLASSES = _group("scheduling.k8s.io", "priorityclasses", "PriorityClass", namespaced=False)
RUNTIME_CLASSES = _group("node.k8s.io", "runtimeclasses", "RuntimeClass", namespaced=False)
STORAGE_CLASSES = _group("storage.k8s.io", "storageclasses", "StorageClass", namespaced=False)
DISRUPTION_BUDGETS = _group("policy", "poddisruptionbudgets", "PodDisruptionBudget", "status")
CUSTOM_DEFINITIONS = _group(
    "apiextensions.k8s.io", "customresourcedefinitions", "CustomResourceDefinition", "status", namespaced=False
)

BUILT_IN: tuple[Resource, ...] = (
    NAMESPACES, PODS, CONFIG_MAPS, SECRETS, SERVICES, SERVICE_ACCOUNTS, CLAIMS, VOLUMES, NODES, EVENTS, QUOTAS,
    LIMIT_RANGES, JOBS, STATEFUL_SETS, ROLES, ROLE_BINDINGS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS,
    NETWORK_POLICIES, LEASES, PRIORITY_CLASSES, RUNTIME_CLASSES, STORAGE_CLASSES, DISRUPTION_BUDGETS,
    CUSTOM_DEFINITIONS,
    _review("authorization.k8s.io", "selfsubjectaccessreviews", "SelfSubjectAccessReview"),
    _review("authorization.k8s.io", "selfsubjectrulesreviews", "SelfSubjectRulesReview"),
    _review("authentication.k8s.io", "selfsubjectreviews", "SelfSubjectReview"),
)  # fmt: skip


def _custom(group: str, version: str, plural: str, kind: str, *subresources: str, namespaced: bool = True) -> Resource:
    return Resource(group, version, plural, kind, namespaced, subresources)


SANDBOXES = _custom("agents.x-k8s.io", "v1beta1", "sandboxes", "Sandbox", "status", "scale")
SANDBOX_TEMPLATES = _custom("extensions.agents.x-k8s.io", "v1beta1", "sandboxtemplates", "SandboxTemplate")
WARM_POOLS = _custom("extensions.agents.x-k8s.io", "v1beta1", "sandboxwarmpools", "SandboxWarmPool", "status", "scale")
SANDBOX_CLAIMS = _custom("extensions.agents.x-k8s.io", "v1beta1", "sandboxclaims", "SandboxClaim", "status")
JOB_SETS = _custom("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet", "status")
LEADER_WORKER_SETS = _custom("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet", "status", "scale")
TRAIN_JOBS = _custom("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob", "status")
TRAINING_RUNTIMES = _custom("trainer.kubeflow.org", "v1alpha1", "trainingruntimes", "TrainingRuntime")
CLUSTER_TRAINING_RUNTIMES = _custom(
    "trainer.kubeflow.org", "v1alpha1", "clustertrainingruntimes", "ClusterTrainingRuntime", namespaced=False
)
LOCAL_QUEUES = _custom("kueue.x-k8s.io", "v1beta1", "localqueues", "LocalQueue", "status")
CLUSTER_QUEUES = _custom("kueue.x-k8s.io", "v1beta1", "clusterqueues", "ClusterQueue", "status", namespaced=False)
VOLUME_SNAPSHOTS = _custom("snapshot.storage.k8s.io", "v1", "volumesnapshots", "VolumeSnapshot", "status")

CUSTOM: dict[str, tuple[Resource, ...]] = {
    "agent-sandbox": (SANDBOXES, SANDBOX_TEMPLATES, WARM_POOLS, SANDBOX_CLAIMS),
    "jobset": (JOB_SETS,),
    "lws": (LEADER_WORKER_SETS,),
    "kubeflow-trainer": (TRAIN_JOBS, TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES),
    "kueue": (LOCAL_QUEUES, CLUSTER_QUEUES),
    "snapshots": (VOLUME_SNAPSHOTS,),
}
"""What a test can have the cluster serve beside Kubernetes itself."""


@dataclass(frozen=True)
class Target:
    """What a path names. ``name`` and ``subresource`` are empty where it names neither; ``rest`` follows them."""

    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    rest: str = ""


class Catalog:
    """The resources that one server has, by where requests find them."""

    def __init__(self, serve: Iterable[str]) -> None:
        serve = frozenset(serve)
        self.serves = frozenset(serve) | ({"jobset"} if "kubeflow-trainer" in serve else frozenset())
        custom = [resource for name in sorted(self.serves) for resource in CUSTOM[name]]
        self.resources: tuple[Resource, ...] = (*BUILT_IN, *custom)
        self._by_path = {(r.group, r.version, r.plural): r for r in self.resources}

    def at(self, group: str, version: str, plural: str) -> Resource | None:
        return self._by_path.get((group, version, plural))

    def definitions(self) -> list[dict[str, Any]]:
        """The custom resources as the objects that define them."""
        return [_definition(resource) for resource in self.resources if resource.model is None]


def _definition(resource: Resource) -> dict[str, Any]:
    names = {"plural": resource.plural, "singular": resource.kind.lower(), "kind": resource.kind}
    names["listKind"] = f"{resource.kind}List"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": resource.version, "served": True, "storage": True, "schema": schema}
    accepted = {
        "type": "Established",
        "status": "True",
        "reason": "InitialNamesAccepted",
        "message": "the initial names have been accepted",
    }
    return {
        "metadata": {"name": resource.qualified},
        "spec": {
            "group": resource.group,
            "names": names,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "versions": [version],
        },
        "status": {"acceptedNames": names, "storedVersions": [resource.version], "conditions": [accepted]},
    }
