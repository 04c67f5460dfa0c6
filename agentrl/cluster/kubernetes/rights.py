"""What a run's controller may do in its namespace, and what whoever launches runs must be allowed to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentrl.cluster.kubernetes.site import Object, record_name
from agentrl.cluster.kubernetes.workload import Workload, made_kinds

_MAKE = ("get", "list", "watch", "create", "delete")


def rule(group: str, resources: Sequence[str], verbs: Sequence[str], names: Sequence[str] = ()) -> Object:
    """One rule of a Role."""
    made: Object = {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}
    return {**made, "resourceNames": list(names)} if names else made


def controller_rules(run: str, workload: Workload) -> list[Object]:
    """Of the controller's ServiceAccount: only the kinds that this job is made of."""
    return [
        *(rule(kind.group, [kind.plural], _MAKE) for kind in made_kinds(workload)),
        rule("", ["pods/log"], ["get"]),
        # To make objects that their owner waits for, where admission asks for it (OpenShift does).
        rule("batch", ["jobs/finalizers"], ["update"]),
        rule("", ["configmaps"], ["get", "patch"], [record_name(run)]),
    ]


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
