"""What stands between a valid object and the store: accounts, classes, quota, and webhooks that say no."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from . import errors, pod_security
from .defaults import TOLERATIONS
from .errors import ApiError, Object
from .resources import (
    CLAIMS,
    JOBS,
    NAMESPACES,
    PODS,
    PRIORITY_CLASSES,
    QUOTAS,
    RUNTIME_CLASSES,
    SERVICE_ACCOUNTS,
    SERVICES,
    STATEFUL_SETS,
    Resource,
)
from .store import Store
from .validation import quantity

TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
SYSTEM_CLASSES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


@dataclass
class Denial:
    """A webhook that refuses objects. ``left`` counts down to nothing; None denies for ever."""

    plural: str
    message: str
    name: str = "*"
    webhook: str = "policy.example.com"
    left: int | None = None


@dataclass
class Admission:
    """Checks and changes objects that are created or changed."""

    store: Store
    mutations: tuple[Callable[[Resource, Object], None], ...] = ()
    """Webhooks that change new objects."""
    denials: list[Denial] = field(default_factory=list)
    addresses: Iterator[str] = field(
        default_factory=lambda: iter(f"127.96.{high}.{low}" for high in range(256) for low in range(1, 255))
    )
    """Cluster addresses that no service has."""

    def admit(self, resource: Resource, thing: Object, operation: str) -> None:
        """Let an object pass, perhaps changed.

        Raises:
            ApiError: 403 mostly, with what stood in the way.
        """
        if operation == "CREATE" and resource == PODS:
            self._complete_pod(thing)
        elif operation == "CREATE" and resource == SERVICES:
            self._give_address(thing["spec"])
        if operation == "CREATE":
            for change in self.mutations:
                change(resource, thing)
        self._ask_webhooks(resource, thing)
        if operation == "CREATE":
            self._check_quota(resource, thing)

    def _ask_webhooks(self, resource: Resource, thing: Object) -> None:
        for denial in list(self.denials):
            if denial.plural != resource.plural or not fnmatch.fnmatch(thing["metadata"]["name"], denial.name):
                continue
            if denial.left is not None:
                denial.left -= 1
                if denial.left <= 0:
                    self.denials.remove(denial)
            raise ApiError(
                403, "", f'admission webhook "{denial.webhook}" denied the request: {denial.message}', details={}
            )

    def _complete_pod(self, thing: Object) -> None:
        spec, meta = thing["spec"], thing["metadata"]
        account = spec.setdefault("serviceAccountName", "default")
        spec.setdefault("serviceAccount", account)
        found = self.store.find(SERVICE_ACCOUNTS, meta["namespace"], account)
        if found is None:
            why = (
                f'error looking up service account {meta["namespace"]}/{account}: serviceaccount "{account}" not found'
            )
            raise errors.forbidden(PODS, meta["name"], why)
        spec.setdefault("enableServiceLinks", True)
        self._set_priority(spec, meta["name"])
        if (runtime := spec.get("runtimeClassName")) and self.store.find(RUNTIME_CLASSES, "", runtime) is None:
            raise errors.forbidden(PODS, meta["name"], f'pod rejected: RuntimeClass "{runtime}" not found')
        tolerations = spec.setdefault("tolerations", [])
        have = {one.get("key") for one in tolerations}
        tolerations += [dict(one) for one in TOLERATIONS if one["key"] not in have]
        self._check_security(spec, meta)
        if spec.get("automountServiceAccountToken", found.get("automountServiceAccountToken", True)):
            _mount_token(spec)

    def _check_security(self, spec: Object, meta: Object) -> None:
        space = self.store.get(NAMESPACES, "", meta["namespace"])
        if (space["metadata"].get("labels") or {}).get(pod_security.ENFORCE) != "restricted":
            return
        if wrong := pod_security.violations(spec):
            raise errors.forbidden(PODS, meta["name"], f'violates PodSecurity "restricted:latest": {wrong}')

    def _give_address(self, spec: Object) -> None:
        if spec.get("type") == "ExternalName":
            return
        address = spec.setdefault("clusterIP", "") or next(self.addresses)
        more = {"ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster"}
        spec.update({"clusterIP": address, "clusterIPs": [address], **more})

    def _set_priority(self, spec: Object, name: str) -> None:
        wanted = spec.get("priorityClassName")
        if wanted in SYSTEM_CLASSES:
            spec["priority"] = SYSTEM_CLASSES[wanted]
            return
        classes = self.store.all(PRIORITY_CLASSES)
        if wanted:
            chosen = next((one for one in classes if one["metadata"]["name"] == wanted), None)
            if chosen is None:
                raise errors.forbidden(PODS, name, f"no PriorityClass with name {wanted} was found")
        else:
            chosen = next((one for one in classes if one.get("globalDefault")), None)
            if chosen is not None:
                spec["priorityClassName"] = chosen["metadata"]["name"]
        spec["priority"] = chosen["value"] if chosen else 0
        spec.setdefault("preemptionPolicy", (chosen or {}).get("preemptionPolicy", "PreemptLowerPriority"))

    def _check_quota(self, resource: Resource, thing: Object) -> None:
        meta = thing["metadata"]
        for quota in self.store.all(QUOTAS, meta.get("namespace", "")) if meta.get("namespace") else ():
            hard = quota["spec"].get("hard") or {}
            asked = {what: amount for what, amount in usage(resource, thing).items() if what in hard}
            if resource == PODS:
                _must_say(quota["metadata"]["name"], hard, thing)
            used = self.used(quota)
            over = [what for what, amount in asked.items() if used[what] + amount > quantity(hard[what])]
            if over:
                raise _over(resource, thing, quota, {what: (asked[what], used[what]) for what in sorted(over)})

    def used(self, quota: Object) -> dict[str, float]:
        """What the objects of a namespace take of a quota."""
        hard = quota["spec"].get("hard") or {}
        used = dict.fromkeys(hard, 0.0)
        for resource, thing in self.store.everything():
            if thing["metadata"].get("namespace") == quota["metadata"]["namespace"]:
                for what, amount in usage(resource, thing).items():
                    if what in used:
                        used[what] += amount
        return used


def _over(resource: Resource, thing: Object, quota: Object, amounts: dict[str, tuple[float, float]]) -> ApiError:
    """A quota's refusal. ``amounts``: what -> (asked, used)."""
    hard = quota["spec"]["hard"]
    asked = ",".join(f"{what}={shown(what, amount)}" for what, (amount, _) in amounts.items())
    used = ",".join(f"{what}={shown(what, amount)}" for what, (_, amount) in amounts.items())
    limited = ",".join(f"{what}={hard[what]}" for what in amounts)
    why = f"exceeded quota: {quota['metadata']['name']}, requested: {asked}, used: {used}, limited: {limited}"
    return errors.forbidden(resource, thing["metadata"]["name"], why)


def shown(what: str, amount: float) -> str:
    """An amount as quotas write it."""
    if what.endswith("cpu") and amount != int(amount):
        return f"{round(amount * 1000)}m"
    if what.endswith(("memory", "storage")):
        for unit, scale in (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
            if amount and amount % scale == 0:
                return f"{int(amount // scale)}{unit}"
    return str(int(amount))


def usage(resource: Resource, thing: Object) -> dict[str, float]:
    """What an object counts for in a quota."""
    of_kind = f"count/{resource.plural}.{resource.group}" if resource.group else f"count/{resource.plural}"
    amounts: dict[str, float] = {of_kind: 1.0}
    if resource == PODS:
        if thing.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            return amounts
        amounts["pods"] = 1.0
        for kind in ("requests", "limits"):
            for what, amount in pod_resources(thing["spec"], kind).items():
                amounts[f"{kind}.{what}"] = amount
                if kind == "requests":
                    amounts[what] = amount
    elif resource == CLAIMS:
        amounts["persistentvolumeclaims"] = 1.0
        asked = (thing["spec"].get("resources") or {}).get("requests") or {}
        amounts["requests.storage"] = quantity(asked.get("storage", 0))
    elif resource not in (JOBS, STATEFUL_SETS) and not resource.group:
        amounts[resource.plural] = 1.0
    return amounts


def pod_resources(spec: Object, kind: str = "requests") -> dict[str, float]:
    """What a pod asks for: the sum of its containers, or the largest of its init containers."""
    total: dict[str, float] = {}
    for container in spec.get("containers") or []:
        for what, amount in ((container.get("resources") or {}).get(kind) or {}).items():
            total[what] = total.get(what, 0.0) + quantity(amount)
    for container in spec.get("initContainers") or []:
        for what, amount in ((container.get("resources") or {}).get(kind) or {}).items():
            total[what] = max(total.get(what, 0.0), quantity(amount))
    return total


def _must_say(quota: str, hard: Object, pod: Object) -> None:
    """Where a quota bounds CPU or memory, each container must say how much it takes."""
    for container in pod["spec"]["containers"]:
        resources = container.get("resources") or {}
        lacking = [
            f"{kind}.{what}"
            for kind in ("limits", "requests")
            for what in ("cpu", "memory")
            if f"{kind}.{what}" in hard and what not in (resources.get(kind) or {})
        ]
        if lacking:
            said = ", ".join(f"{one} for: {container['name']}" for one in lacking)
            raise errors.forbidden(PODS, pod["metadata"]["name"], f"failed quota: {quota}: must specify {said}")


def _mount_token(spec: Object) -> None:
    name = "kube-api-access-fake0"
    if any(volume["name"].startswith("kube-api-access-") for volume in spec.get("volumes") or []):
        return
    spec.setdefault("volumes", []).append(
        {
            "name": name,
            "projected": {
                "defaultMode": 0o644,
                "sources": [
                    {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                    {
                        "downwardAPI": {
                            "items": [
                                {
                                    "path": "namespace",
                                    "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
                                }
                            ]
                        }
                    },
                ],
            },
        }
    )
    for container in (*(spec.get("initContainers") or []), *spec["containers"]):
        mounts = container.setdefault("volumeMounts", [])
        if all(mount["mountPath"] != TOKEN_FOLDER for mount in mounts):
            mounts.append({"name": name, "readOnly": True, "mountPath": TOKEN_FOLDER})
