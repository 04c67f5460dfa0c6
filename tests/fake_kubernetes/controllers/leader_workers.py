"""LeaderWorkerSet: groups of pods, one leader each, that are made anew together."""

from __future__ import annotations

from ..errors import Object, copied
from ..resources import LEADER_WORKER_SETS, PODS, SERVICES
from .base import Controller, is_over, is_ready, put_condition
from .stateful_sets import digest

PREFIX = "leaderworkerset.sigs.k8s.io/"


class LeaderWorkerController(Controller):
    """Pods belong to the set itself: there are no stateful sets between. Rolling updates are not done."""

    resource = LEADER_WORKER_SETS
    name = "leaderworkerset"
    owned = (PODS, SERVICES)

    def reconcile(self, thing: Object) -> None:
        owner, spec, name = thing, thing["spec"], thing["metadata"]["name"]
        if owner["metadata"].get("deletionTimestamp"):
            return
        if not self.children(SERVICES, owner):
            service = {"clusterIP": "None", "selector": {f"{PREFIX}name": name}, "publishNotReadyAddresses": True}
            self.make(SERVICES, owner, {"metadata": {"name": name}, "spec": service})
        pods = {pod["metadata"]["name"]: pod for pod in self.children(PODS, owner)}
        size = spec["leaderWorkerTemplate"]["size"]
        for pod in pods.values():
            if int(pod["metadata"]["labels"][f"{PREFIX}group-index"]) >= spec["replicas"]:
                self.remove(PODS, pod)
        ready = 0
        for group in range(spec["replicas"]):
            names = [f"{name}-{group}", *(f"{name}-{group}-{number}" for number in range(1, size))]
            present = [pods[one] for one in names if one in pods]
            if self._must_restart(spec, present):
                for pod in present:
                    self.remove(PODS, pod)
                continue
            for number, pod_name in enumerate(names):
                if pod_name not in pods:
                    self._make(owner, pod_name, group, number)
            ready += len(present) == size and all(is_ready(pod) for pod in present)
        self._write(owner, ready)

    def _must_restart(self, spec: Object, present: list[Object]) -> bool:
        """A group is made anew when one of its pods has ended, goes away, or had a container restarted."""
        if spec["leaderWorkerTemplate"]["restartPolicy"] != "RecreateGroupOnPodRestart":
            return any(is_over(pod) for pod in present)
        return any(
            is_over(pod)
            or pod["metadata"].get("deletionTimestamp")
            or any(one["restartCount"] for one in pod["status"].get("containerStatuses") or [])
            for pod in present
        )

    def _make(self, owner: Object, pod_name: str, group: int, number: int) -> None:
        spec, name = owner["spec"]["leaderWorkerTemplate"], owner["metadata"]["name"]
        chosen = spec.get("leaderTemplate") if number == 0 else None
        template = copied(chosen or spec["workerTemplate"])
        meta = template.setdefault("metadata", {})
        meta["name"] = pod_name
        meta["labels"] = {
            **(meta.get("labels") or {}),
            f"{PREFIX}name": name,
            f"{PREFIX}group-index": str(group),
            f"{PREFIX}worker-index": str(number),
            f"{PREFIX}group-key": digest({"group": group, "name": name}),
            f"{PREFIX}template-revision-hash": digest(spec),
        }
        meta.setdefault("annotations", {})[f"{PREFIX}size"] = str(spec["size"])
        template["spec"]["hostname"], template["spec"]["subdomain"] = pod_name, name
        own = {
            "LWS_LEADER_ADDRESS": f"{name}-{group}.{name}.{owner['metadata']['namespace']}",
            "LWS_GROUP_SIZE": str(spec["size"]),
            "LWS_WORKER_INDEX": str(number),
        }
        for container in (*(template["spec"].get("initContainers") or []), *template["spec"]["containers"]):
            variables = [{"name": key, "value": value} for key, value in own.items()]
            container["env"] = [*variables, *(container.get("env") or [])]
        self.make(PODS, owner, {"metadata": meta, "spec": template["spec"]})

    def _write(self, owner: Object, ready: int) -> None:
        replicas, generation = owner["spec"]["replicas"], owner["metadata"]["generation"]
        status: Object = copied(owner.get("status") or {})
        status |= {
            "replicas": replicas,
            "readyReplicas": ready,
            "updatedReplicas": replicas,
            "observedGeneration": generation,
            "hpaPodSelector": f"{PREFIX}name={owner['metadata']['name']},{PREFIX}worker-index=0",
        }
        up = ready == replicas
        said = (
            ("True", "AllGroupsReady", "All replicas are ready")
            if up
            else ("False", "AllGroupsReady", "Not all replicas are ready")
        )
        put_condition(status, generation, "Available", said)
        progress = ("False" if up else "True", "GroupsProgressing", "Replicas are progressing")
        put_condition(status, generation, "Progressing", progress)
        self.say_status(owner, status)
