"""The controller of stateful sets: pods with numbers and names that stay."""

from __future__ import annotations

import hashlib

import msgspec

from ..errors import Object, copied
from ..resources import CLAIMS, PODS, STATEFUL_SETS
from ..store import key_of
from .base import Controller, is_over, is_ready


class StatefulSetController(Controller):
    """Knows ordered and parallel management, and rolling updates without partitions."""

    resource = STATEFUL_SETS
    name = "statefulset-controller"
    owned = (PODS,)

    def reconcile(self, thing: Object) -> None:
        owner, spec, name = thing, thing["spec"], thing["metadata"]["name"]
        if owner["metadata"].get("deletionTimestamp"):
            return
        revision = f"{name}-{digest(spec['template'])}"
        pods = {pod["metadata"]["name"]: pod for pod in self.children(PODS, owner)}
        first = (spec.get("ordinals") or {}).get("start", 0)
        wanted = [f"{name}-{first + number}" for number in range(spec["replicas"])]
        in_order = spec["podManagementPolicy"] == "OrderedReady"
        self._scale_down(pods, wanted, in_order=in_order)
        waiting = False
        for pod_name in wanted:
            pod = pods.get(pod_name)
            if pod is not None and is_over(pod):
                self.recorder.say(
                    owner,
                    "Warning",
                    "RecreatingFailedPod",
                    f"StatefulSet {name} is recreating failed Pod {pod_name}",
                    component=self.name,
                )
                self.remove(PODS, pod)
            elif pod is None and not waiting:
                pods[pod_name] = self._make(owner, pod_name, revision)
            waiting = waiting or (in_order and not ((pod := pods.get(pod_name)) and is_ready(pod)))
        if not waiting:
            self._update(owner, [pods[one] for one in wanted if one in pods], revision)
        self._write(owner, list(pods.values()), revision)

    def _scale_down(self, pods: dict[str, Object], wanted: list[str], *, in_order: bool) -> None:
        extra = sorted((one for one in pods if one not in wanted), key=number_of, reverse=True)
        for name in extra[:1] if in_order else extra:
            self.remove(PODS, pods[name])

    def _update(self, owner: Object, pods: list[Object], revision: str) -> None:
        """Replace one pod of an old revision, from the last."""
        if (owner["spec"].get("updateStrategy") or {}).get("type", "RollingUpdate") != "RollingUpdate":
            return
        for pod in reversed(pods):
            if pod["metadata"]["labels"]["controller-revision-hash"] != revision:
                self.remove(PODS, pod)
                return
            if not is_ready(pod):
                return

    def _make(self, owner: Object, name: str, revision: str) -> Object:
        spec = owner["spec"]
        template = copied(spec["template"])
        meta = template.setdefault("metadata", {})
        meta["name"] = name
        meta.setdefault("labels", {}).update(
            {
                "statefulset.kubernetes.io/pod-name": name,
                "apps.kubernetes.io/pod-index": str(number_of(name)),
                "controller-revision-hash": revision,
            }
        )
        template["spec"]["hostname"] = name
        if spec.get("serviceName"):
            template["spec"]["subdomain"] = spec["serviceName"]
        for claim in spec.get("volumeClaimTemplates") or []:
            self._claim(owner, claim, name, template["spec"])
        pod = self.make(PODS, owner, {"metadata": meta, "spec": template["spec"]})
        said = f"create Pod {name} in StatefulSet {owner['metadata']['name']} successful"
        self.recorder.say(owner, "Normal", "SuccessfulCreate", said, component=self.name)
        return pod

    def _claim(self, owner: Object, template: Object, pod: str, spec: Object) -> None:
        what = template["metadata"]["name"]
        name = f"{what}-{pod}"
        namespace = owner["metadata"]["namespace"]
        if self.store.find(CLAIMS, namespace, name) is None:
            body = {
                "metadata": {"name": name, "labels": owner["spec"]["selector"].get("matchLabels") or {}},
                "spec": template["spec"],
            }
            made = self.make(CLAIMS, owner, body)
            retention = (owner["spec"].get("persistentVolumeClaimRetentionPolicy") or {}).get("whenDeleted", "Retain")
            if retention == "Retain":
                self.store.change(CLAIMS, *key_of(made), lambda one: one["metadata"].pop("ownerReferences"))
        volumes = [one for one in spec.get("volumes") or [] if one["name"] != what]
        spec["volumes"] = [*volumes, {"name": what, "persistentVolumeClaim": {"claimName": name}}]

    def _write(self, owner: Object, pods: list[Object], revision: str) -> None:
        ready = sum(is_ready(pod) for pod in pods)
        updated = sum(pod["metadata"]["labels"]["controller-revision-hash"] == revision for pod in pods)
        status = {
            "observedGeneration": owner["metadata"].get("generation", 1),
            "replicas": len(pods),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "updatedReplicas": updated,
            "currentReplicas": updated,
            "currentRevision": revision,
            "updateRevision": revision,
            "collisionCount": 0,
        }
        self.say_status(owner, status)


def number_of(name: str) -> int:
    return int(name.rsplit("-", 1)[1])


def digest(thing: Object) -> str:
    """Ten letters that tell one template from another."""
    return hashlib.sha256(msgspec.json.encode(thing, order="deterministic")).hexdigest()[:10]
