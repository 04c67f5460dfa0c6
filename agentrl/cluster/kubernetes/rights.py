"""What a run's controller may do in its namespace, and what whoever launches runs must be allowed to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentrl.cluster.kubernetes.config import EngineKind, GpuSharing, TrainerKind
from agentrl.cluster.kubernetes.site import Object, record_name
from agentrl.cluster.kubernetes.workload import Served, Workload, engine_kind, gpu_sharing, trainer_kind

_MAKE = ("get", "list", "watch", "create", "delete")


def rule(group: str, resources: Sequence[str], verbs: Sequence[str], names: Sequence[str] = ()) -> Object:
    """One rule of a Role."""
    made: Object = {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}
    return {**made, "resourceNames": list(names)} if names else made


def controller_rules(run: str, workload: Workload, served: Served) -> list[Object]:
    """Of the controller's ServiceAccount: only the kinds that this job is made of."""
    rules = [
        rule("", ["pods"], _MAKE),
        rule("", ["pods/log"], ["get"]),
        rule("", ["configmaps"], ["get", "patch"], [record_name(run)]),
        *sandbox_rules(workload),
    ]
    kind = engine_kind(workload)
    if kind is EngineKind.statefulset:
        rules.append(rule("apps", ["statefulsets"], _MAKE))
    elif kind is EngineKind.leaderworkerset:
        rules.append(rule("leaderworkerset.x-k8s.io", ["leaderworkersets"], _MAKE))
    rules.append(rule("batch", ["jobs"], _MAKE))
    trainer = trainer_kind(workload, served)
    if trainer is TrainerKind.jobset:
        rules.append(rule("jobset.x-k8s.io", ["jobsets"], _MAKE))
    elif trainer is TrainerKind.trainjob:
        rules.append(rule("trainer.kubeflow.org", ["trainjobs"], _MAKE))
    elif workload.kubernetes.trainer.nodes > 1:
        rules.append(rule("", ["services"], _MAKE))
    if gpu_sharing(workload, served) is GpuSharing.claim:
        rules.append(rule("resource.k8s.io", ["resourceclaims"], _MAKE))
    return rules


def sandbox_rules(workload: Workload) -> list[Object]:
    """What the sandboxes' provider needs beyond pods."""
    return [rule("", ["pods/exec"], ["get", "create"])]


def submitter_rules(controllers: Iterable[Object]) -> list[Object]:
    """Of people who launch, watch and stop runs. Nobody can grant a right that she lacks: so all of a controller's,
    without its restriction to names that are not known yet."""
    return [
        rule("batch", ["jobs"], [*_MAKE, "patch"]),
        rule("", ["configmaps"], [*_MAKE, "patch"]),
        rule("", ["serviceaccounts", "persistentvolumeclaims"], ["get", "list", "create", "delete"]),
        rule("rbac.authorization.k8s.io", ["roles", "rolebindings"], ["get", "list", "create", "delete"]),
        rule("networking.k8s.io", ["networkpolicies"], ["get", "list", "create", "delete"]),
        rule("", ["events", "resourcequotas"], ["get", "list"]),
        *({name: value for name, value in one.items() if name != "resourceNames"} for one in controllers),
    ]
