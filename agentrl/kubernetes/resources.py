"""Kinds of objects, and where the API serves them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote


@dataclass(frozen=True)
class Resource:
    """One kind of object in one version."""

    plural: str
    kind: str
    group: str = ""
    """Empty for the core group."""
    version: str = "v1"
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """As objects carry it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """Its path on the server: of the collection, or of one object."""
        parts = [f"apis/{self.group}/{self.version}" if self.group else f"api/{self.version}"]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        parts += [quote(part, safe="") for part in (name, subresource) if part is not None]
        return "/" + "/".join(parts)


PODS = Resource("pods", "Pod")
CONFIG_MAPS = Resource("configmaps", "ConfigMap")
SECRETS = Resource("secrets", "Secret")
SERVICES = Resource("services", "Service")
SERVICE_ACCOUNTS = Resource("serviceaccounts", "ServiceAccount")
CLAIMS = Resource("persistentvolumeclaims", "PersistentVolumeClaim")
EVENTS = Resource("events", "Event")
QUOTAS = Resource("resourcequotas", "ResourceQuota")
NODES = Resource("nodes", "Node", namespaced=False)
NAMESPACES = Resource("namespaces", "Namespace", namespaced=False)
JOBS = Resource("jobs", "Job", "batch")
STATEFUL_SETS = Resource("statefulsets", "StatefulSet", "apps")
ROLES = Resource("roles", "Role", "rbac.authorization.k8s.io")
ROLE_BINDINGS = Resource("rolebindings", "RoleBinding", "rbac.authorization.k8s.io")
NETWORK_POLICIES = Resource("networkpolicies", "NetworkPolicy", "networking.k8s.io")
STORAGE_CLASSES = Resource("storageclasses", "StorageClass", "storage.k8s.io", namespaced=False)
ACCESS_REVIEWS = Resource(
    "selfsubjectaccessreviews", "SelfSubjectAccessReview", "authorization.k8s.io", namespaced=False
)
JOB_SETS = Resource("jobsets", "JobSet", "jobset.x-k8s.io", "v1alpha2")
TRAIN_JOBS = Resource("trainjobs", "TrainJob", "trainer.kubeflow.org", "v1alpha1")
LEADER_WORKER_SETS = Resource("leaderworkersets", "LeaderWorkerSet", "leaderworkerset.x-k8s.io")
SANDBOXES = Resource("sandboxes", "Sandbox", "agents.x-k8s.io", "v1beta1")
SANDBOX_TEMPLATES = Resource("sandboxtemplates", "SandboxTemplate", "extensions.agents.x-k8s.io", "v1beta1")
SANDBOX_WARM_POOLS = Resource("sandboxwarmpools", "SandboxWarmPool", "extensions.agents.x-k8s.io", "v1beta1")
SANDBOX_CLAIMS = Resource("sandboxclaims", "SandboxClaim", "extensions.agents.x-k8s.io", "v1beta1")
RESOURCE_CLAIMS = Resource("resourceclaims", "ResourceClaim", "resource.k8s.io")

_ALL = [found for found in list(globals().values()) if isinstance(found, Resource)]
_BY_KIND = {(resource.api_version, resource.kind): resource for resource in _ALL}


def resource_of(obj: dict[str, Any]) -> Resource:
    """The kind of an object that agentrl makes itself."""
    return _BY_KIND[obj["apiVersion"], obj["kind"]]
