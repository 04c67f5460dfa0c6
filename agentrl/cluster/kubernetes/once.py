"""What an administrator applies once, so that others can launch runs in a namespace."""

from __future__ import annotations

from agentrl.cluster.kubernetes.control import runs_claim
from agentrl.cluster.kubernetes.rights import controller_rules, submitter_rules
from agentrl.cluster.kubernetes.site import PART_OF, Object
from agentrl.cluster.kubernetes.workload import Submission

_NAME = "agentrl-launcher"


def once_per_cluster(submission: Submission, namespace: str) -> list[Object]:
    """The namespace, the volume of the runs, and the Role of people who launch; bind it to them."""
    labels = {PART_OF: "agentrl"}
    granted = [*controller_rules(submission.run, submission.workload), *submission.sandbox_rules]
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}},
        runs_claim(submission.workload, namespace),
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": _NAME, "namespace": namespace, "labels": labels},
            "rules": submitter_rules(granted),
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": _NAME, "namespace": namespace, "labels": labels},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": _NAME},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": _NAME}],
        },
    ]
