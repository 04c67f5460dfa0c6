"""The controller as objects: what `agentrl launch` sends, before anything else of the run exists.

The Job owns everything else of its run. It is sent suspended, so that no controller starts before its rights are there.
"""

from __future__ import annotations

from agentrl.cluster.kubernetes.network import policies
from agentrl.cluster.kubernetes.pods import Program, field_of_pod, overridden, pod_template
from agentrl.cluster.kubernetes.rights import controller_rules
from agentrl.cluster.kubernetes.site import PART_OF, RECORD, Object, Site, record_name
from agentrl.cluster.kubernetes.workload import Workload

ROLE_NAME = "controller"
RECORD_FOLDER = "/etc/agentrl"
CONFIG_FILE = "config.json"
CONFIG_TEXT = "config.yaml"
OVERVIEW_FILE = "overview.json"
STATUS_FILE = "status.json"
"""What the controller writes into the record, as it goes: what `agentrl ps` and `agentrl status` show."""
_ENDED = (0, 1, 2)
"""Exit codes after which a controller is not started again: finished, failed or paused, a mistake of the user."""


def controller_job(site: Site, workload: Workload) -> Object:
    """The Job of a run's controller, suspended."""
    kubernetes = workload.kubernetes
    program = Program(
        role=ROLE_NAME,
        argv=[kubernetes.python, "-m", "agentrl", "control", site.run, "--config", RECORD_FOLDER],
        env={
            "AGENTRL_RUNS_DIR": workload.mount,
            "AGENTRL_NAMESPACE": field_of_pod("metadata.namespace"),
            "AGENTRL_POD_IP": field_of_pod("status.podIP"),
            "AGENTRL_JOB": site.run,
            "AGENTRL_JOB_UID": field_of_pod("metadata.labels['batch.kubernetes.io/controller-uid']"),
        },
        port=kubernetes.controller_port,
        grace_s=2 * workload.stop_grace_s + 30.0,
    )
    template = pod_template(site, workload, program, restart="Never")
    spec = template["spec"]
    spec["automountServiceAccountToken"] = True
    spec["serviceAccountName"] = site.run
    spec["volumes"].append({"name": "record", "configMap": {"name": record_name(site.run)}})
    spec["containers"][0]["volumeMounts"].append({"name": "record", "mountPath": RECORD_FOLDER, "readOnly": True})
    template = overridden(template, kubernetes.controller, ROLE_NAME)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": site.metadata(site.run, ROLE_NAME),
        "spec": {
            "suspend": True,
            "backoffLimit": kubernetes.controller_restarts,
            "podReplacementPolicy": "Failed",  # never two controllers at once
            "podFailurePolicy": {
                "rules": [
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                    {
                        "action": "FailJob",
                        "onExitCodes": {"containerName": ROLE_NAME, "operator": "In", "values": list(_ENDED[1:])},
                    },
                ]
            },
            "template": template,
        },
    }


def dependents(site: Site, workload: Workload, sandboxes: list[Object]) -> list[Object]:
    """What the controller needs before it starts; each owned by its Job, if `site` has an owner.

    `sandboxes`: rules of a Role that the sandboxes' provider needs.
    """
    metadata = site.metadata(site.run, ROLE_NAME)
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": site.run}
    subject = {"kind": "ServiceAccount", "name": site.run, "namespace": site.namespace}
    objects: list[Object] = [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": metadata,
            "automountServiceAccountToken": False,
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": metadata,
            "rules": [*controller_rules(site.run, workload), *sandboxes],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": reference,
            "subjects": [subject],
        },
    ]
    return [*objects, *(policies(site, workload) if workload.kubernetes.network_policy else [])]


def record(site: Site, *, config_json: str, config_text: str) -> Object:
    """What stays of a run in the cluster when it is stopped: its configuration, and how it went."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": record_name(site.run),
            "namespace": site.namespace,
            "labels": {PART_OF: "agentrl", "app.kubernetes.io/managed-by": "agentrl", RECORD: site.run},
        },
        "data": {CONFIG_FILE: config_json, CONFIG_TEXT: config_text},
    }


def runs_claim(workload: Workload, namespace: str) -> Object:
    """The volume of all runs in a namespace."""
    volume = workload.kubernetes.volume
    spec: Object = {
        "accessModes": [volume.access.value],
        "resources": {"requests": {"storage": f"{volume.size_gb}Gi"}},
    }
    if volume.storage_class is not None:
        spec["storageClassName"] = volume.storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": volume.claim,
            "namespace": namespace,
            "labels": {PART_OF: "agentrl", "app.kubernetes.io/managed-by": "agentrl"},
        },
        "spec": spec,
    }
