"""Schemas of the custom resources, as their definitions have them; what is deep in them and not used here is ``any``.

A mark ``!`` after a field's name means that it must be there.
"""

from __future__ import annotations

from typing import Any

from .errors import copied
from .schema import ListOf, MapOf, Model, OneOf, Schema, Struct

POD_TEMPLATE = {"metadata": {"labels": MapOf("str"), "annotations": MapOf("str")}, "spec!": Model("V1PodSpec")}
FULL_TEMPLATE = Model("V1PodTemplateSpec")
CLAIM_TEMPLATES = ListOf(
    {
        "metadata": {"name": "str", "labels": MapOf("str"), "annotations": MapOf("str")},
        "spec!": Model("V1PersistentVolumeClaimSpec"),
    }
)
CONDITIONS = ListOf(Model("V1Condition"))
ENV = ListOf({"name!": "str", "value!": "str", "containerName": "str"})

SPECS: dict[str, dict[str, Any]] = {
    "Sandbox": {
        "spec!": {
            "podTemplate!": POD_TEMPLATE,
            "volumeClaimTemplates": CLAIM_TEMPLATES,
            "service": "bool",
            "operatingMode": OneOf("Running", "Suspended"),
            "shutdownTime": "time",
            "shutdownPolicy": OneOf("Delete", "Retain"),
        },
        "status": {
            "serviceFQDN": "str", "service": "str", "conditions": CONDITIONS, "selector": "str",
            "podIPs": ListOf("str"), "nodeName": "str",
        },
    },
    "SandboxTemplate": {
        "spec!": {
            "podTemplate!": POD_TEMPLATE,
            "volumeClaimTemplates": CLAIM_TEMPLATES,
            "volumeClaimTemplatesPolicy": OneOf("Disallowed", "Allowed", "Overrides"),
            "envVarsInjectionPolicy": OneOf("Allowed", "Overrides", "Disallowed"),
            "networkPolicy": {"ingress": ListOf(Model("V1NetworkPolicyIngressRule")),
                              "egress": ListOf(Model("V1NetworkPolicyEgressRule"))},
            "networkPolicyManagement": OneOf("Managed", "Unmanaged"),
            "service": "bool",
        },
        },
    "SandboxWarmPool": {
        "spec!": {
            "replicas": "int",
            "sandboxTemplateRef!": {"name!": "str"},
            "updateStrategy": {"type": OneOf("Recreate", "OnReplenish")},
        },
        "status": {"replicas": "int", "readyReplicas": "int", "selector": "str", "observedGeneration": "int"},
    },
    "SandboxClaim": {
        "spec!": {
            "warmPoolRef!": {"name!": "str"},
            "lifecycle": {
                "shutdownTime": "time",
                "ttlSecondsAfterFinished": "int",
                "shutdownPolicy": OneOf("Delete", "DeleteForeground", "Retain"),
            },
            "additionalPodMetadata": {"labels": MapOf("str"), "annotations": MapOf("str")},
            "env": ENV,
            "volumeClaimTemplates": CLAIM_TEMPLATES,
        },
        "status": {"conditions": CONDITIONS, "sandbox": {"name": "str", "podIPs": ListOf("str")}},
    },
    "JobSet": {
        "spec!": {
            "replicatedJobs": ListOf(
                {
                    "name!": "str",
                    "replicas": "int",
                    "groupName": "str",
                    "dependsOn": ListOf({"name!": "str", "status!": OneOf("Ready", "Complete")}),
                    "template!": Model("V1JobTemplateSpec"),
                }
            ),
            "network": {"enableDNSHostnames": "bool", "subdomain": "str", "publishNotReadyAddresses": "bool"},
            "successPolicy": {"operator!": "str", "targetReplicatedJobs": ListOf("str")},
            "failurePolicy": {"maxRestarts": "int", "restartStrategy": "str", "rules": ListOf("any")},
            "startupPolicy": {"startupPolicyOrder!": "str"},
            "suspend": "bool",
            "coordinator": {"replicatedJob!": "str", "jobIndex": "int", "podIndex": "int"},
            "managedBy": "str",
            "ttlSecondsAfterFinished": "int",
            "volumeClaimPolicies": ListOf("any"),
        },
        "status": {
            "conditions": CONDITIONS, "restarts": "int", "restartsCountTowardsMax": "int", "terminalState": "str",
            "replicatedJobsStatus": ListOf("any"), "individualJobsStatus": ListOf("any"),
        },
    },
    "LeaderWorkerSet": {
        "spec!": {
            "replicas": "int",
            "leaderWorkerTemplate!": {
                "leaderTemplate": FULL_TEMPLATE,
                "workerTemplate!": FULL_TEMPLATE,
                "size": "int",
                "restartPolicy": "str",
                "subGroupPolicy": "any",
                "volumeClaimTemplates": ListOf(Model("V1PersistentVolumeClaim")),
                "persistentVolumeClaimRetentionPolicy": "any",
            },
            "rolloutStrategy": "any",
            "startupPolicy": "str",
            "networkConfig": {"subdomainPolicy": "str"},
        },
        "status": {
            "conditions": CONDITIONS, "readyReplicas": "int", "updatedReplicas": "int", "replicas": "int",
            "hpaPodSelector": "str", "observedGeneration": "int",
        },
    },
    "TrainJob": {
        "spec!": {
            "runtimeRef!": {"name!": "str", "apiGroup": "str", "kind": "str"},
            "initializer": "any",
            "trainer": {
                "image": "str", "command": ListOf("str"), "args": ListOf("str"), "env": ListOf(Model("V1EnvVar")),
                "numNodes": "int", "resourcesPerNode": Model("V1ResourceRequirements"),
            },
            "labels": MapOf("str"),
            "annotations": MapOf("str"),
            "runtimePatches": ListOf("any"),
            "suspend": "bool",
            "managedBy": "str",
            "activeDeadlineSeconds": "int",
        },
        "status": {"conditions": CONDITIONS, "jobsStatus": ListOf("any"), "trainerStatus": "any"},
    },
    "TrainingRuntime": {"spec": "any", "status": "any"},
    "ClusterTrainingRuntime": {"spec": "any", "status": "any"},
    "LocalQueue": {"spec": {"clusterQueue": "str", "stopPolicy": "str", "fairSharing": "any"}, "status": "any"},
    "ClusterQueue": {"spec": "any", "status": "any"},
    "VolumeSnapshot": {
        "spec!": {
            "source!": {"persistentVolumeClaimName": "str", "volumeSnapshotContentName": "str"},
            "volumeSnapshotClassName": "str",
        },
        "status": "any",
    },
}  # fmt: skip


def _struct(name: str, shape: Any) -> Schema:
    if isinstance(shape, dict):
        fields = {key.rstrip("!"): _struct(key.rstrip("!"), item) for key, item in shape.items()}
        return Struct(name, fields, frozenset(key[:-1] for key in shape if key.endswith("!")))
    if isinstance(shape, ListOf):
        return ListOf(_struct(name, shape.item))
    if isinstance(shape, MapOf):
        return MapOf(_struct(name, shape.item))
    return shape


SCHEMAS: dict[str, Struct] = {
    kind: Struct(
        kind,
        {
            "apiVersion": "str",
            "kind": "str",
            "metadata": Model("V1ObjectMeta"),
            **{key.rstrip("!"): _struct(key.rstrip("!"), item) for key, item in shape.items()},
        },
        frozenset(key[:-1] for key in shape if key.endswith("!")),
    )
    for kind, shape in SPECS.items()
}


DEFAULTS: dict[str, dict[str, Any]] = {
    "Sandbox": {"operatingMode": "Running", "shutdownPolicy": "Retain"},
    "SandboxTemplate": {
        "networkPolicyManagement": "Managed",
        "envVarsInjectionPolicy": "Disallowed",
        "volumeClaimTemplatesPolicy": "Disallowed",
    },
    "SandboxWarmPool": {"replicas": 1},
    "JobSet": {"suspend": False, "network": {}, "successPolicy": {"operator": "All"}},
    "LeaderWorkerSet": {
        "replicas": 1,
        "startupPolicy": "LeaderCreated",
        "networkConfig": {"subdomainPolicy": "Shared"},
    },
    "TrainJob": {"suspend": False},
}
"""Kind -> what the definition writes into ``spec`` where nothing is said."""


def fill(kind: str, thing: dict[str, Any]) -> None:
    """Write the defaults of a custom resource into an object (which the caller owns)."""
    spec = thing.get("spec")
    if isinstance(spec, dict):
        for key, value in DEFAULTS.get(kind, {}).items():
            spec.setdefault(key, copied(value))
        if kind == "SandboxClaim" and spec.get("lifecycle") is not None:
            spec["lifecycle"].setdefault("shutdownPolicy", "Retain")
        if kind == "LeaderWorkerSet":
            spec["leaderWorkerTemplate"].setdefault("size", 1)
            spec["leaderWorkerTemplate"].setdefault("restartPolicy", "RecreateGroupOnPodRestart")
