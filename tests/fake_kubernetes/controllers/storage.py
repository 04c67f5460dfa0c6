"""Claims get volumes, and keep them as long as a pod has them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from ..api import Api
from ..errors import Object
from ..events import Recorder
from ..resources import CLAIMS, PODS, STORAGE_CLASSES, VOLUMES
from ..store import Change, Key, key_of
from ..volumes import claim_folder
from .base import Controller, is_over

PROTECTION = "kubernetes.io/pvc-protection"
CLASSES = {
    "standard": ("ReadWriteOnce", "ReadWriteOncePod"),
    "shared": ("ReadWriteOnce", "ReadWriteOncePod", "ReadOnlyMany", "ReadWriteMany"),
}
"""Storage class -> the access modes it has: the first as local disks, the second as a shared file system."""


class ClaimController(Controller):
    """The binder, the provisioner, and the protection of claims that are in use."""

    resource = CLAIMS
    name = "persistentvolume-controller"

    def __init__(self, api: Api, recorder: Recorder, folder: Path) -> None:
        super().__init__(api, recorder)
        self._folder = folder

    def see(self, change: Change) -> None:
        if change.resource == CLAIMS and change.type == "DELETED":
            shutil.rmtree(claim_folder(self._folder, change.thing), ignore_errors=True)
            if volume := change.thing["spec"].get("volumeName"):
                self.store.remove(VOLUMES, "", volume)
            return
        super().see(change)

    def keys(self, change: Change) -> Iterator[Key]:
        yield from super().keys(change)
        if change.resource == PODS and (change.type == "DELETED" or is_over(change.thing)):
            for name in claims_of(change.thing):
                yield change.thing["metadata"]["namespace"], name
        if change.resource == STORAGE_CLASSES:
            for claim in self.store.all(CLAIMS):
                yield key_of(claim)

    def reconcile(self, thing: Object) -> None:
        claim = thing
        if claim["metadata"].get("deletionTimestamp"):
            self._let_go(claim)
            return
        if PROTECTION not in (claim["metadata"].get("finalizers") or []):
            self.store.change(
                CLAIMS, *key_of(claim), lambda one: one["metadata"].setdefault("finalizers", []).append(PROTECTION)
            )
            return
        if claim["status"].get("phase") == "Bound":
            return
        wanted = claim["spec"].get("storageClassName") or self._default()
        found = self.store.find(STORAGE_CLASSES, "", wanted or "")
        if found is None:
            said = (
                f'storageclass.storage.k8s.io "{wanted}" not found'
                if wanted
                else "no persistent volumes available for this claim and no storage class is set"
            )
            reason = "ProvisioningFailed" if wanted else "FailedBinding"
            self.recorder.say(claim, "Warning", reason, said, component=self.name)
            return
        modes = CLASSES.get(wanted or "", CLASSES["standard"])
        unable = [mode for mode in claim["spec"].get("accessModes") or [] if mode not in modes]
        if unable:
            said = f'failed to provision volume with StorageClass "{wanted}": access mode {unable[0]} is not supported'
            self.recorder.say(claim, "Warning", "ProvisioningFailed", said, component=self.name)
            return
        self._bind(claim, str(wanted))

    def _bind(self, claim: Object, storage_class: str) -> None:
        name = f"pvc-{claim['metadata']['uid']}"
        size = claim["spec"]["resources"]["requests"]["storage"]
        modes = claim["spec"].get("accessModes")
        self.store.create(
            VOLUMES,
            {
                "metadata": {"name": name},
                "spec": {
                    "capacity": {"storage": size},
                    "accessModes": modes,
                    "storageClassName": storage_class,
                    "persistentVolumeReclaimPolicy": "Delete",
                    "hostPath": {"path": str(claim_folder(self._folder, claim))},
                    "claimRef": {key: claim["metadata"][key] for key in ("name", "namespace", "uid")},
                },
                "status": {"phase": "Bound"},
            },
        )

        def write(stored: Object) -> None:
            stored["spec"]["volumeName"] = name
            stored["spec"]["storageClassName"] = storage_class
            stored["status"] = {"phase": "Bound", "capacity": {"storage": size}, "accessModes": modes}

        bound = self.store.change(CLAIMS, *key_of(claim), write)
        if bound is not None:
            self.recorder.say(
                bound, "Normal", "ProvisioningSucceeded", f"Successfully provisioned volume {name}", component=self.name
            )

    def _let_go(self, claim: Object) -> None:
        namespace, name = key_of(claim)
        if any(name in claims_of(pod) and not is_over(pod) for pod in self.store.all(PODS, namespace)):
            return

        def drop(stored: Object) -> None:
            stored["metadata"]["finalizers"] = [
                one for one in stored["metadata"].get("finalizers") or [] if one != PROTECTION
            ]

        changed = self.store.change(CLAIMS, namespace, name, drop)
        if changed is not None:
            self.api.finish_deletion(CLAIMS, changed)

    def _default(self) -> str | None:
        for one in self.store.all(STORAGE_CLASSES):
            if (one["metadata"].get("annotations") or {}).get("storageclass.kubernetes.io/is-default-class") == "true":
                return str(one["metadata"]["name"])
        return None


def claims_of(pod: Object) -> list[str]:
    """The claims that a pod mounts."""
    volumes = pod["spec"].get("volumes") or []
    return [one["persistentVolumeClaim"]["claimName"] for one in volumes if "persistentVolumeClaim" in one]


def storage_class(name: str, *, default: bool) -> Object:
    return {
        "metadata": {
            "name": name,
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"} if default else {},
        },
        "provisioner": f"{name}.fake.example.com",
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate",
        "allowVolumeExpansion": True,
    }
