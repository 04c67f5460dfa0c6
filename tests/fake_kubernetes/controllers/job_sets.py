"""JobSet: indexed jobs that live, fail and end together; and the TrainJob of Kubeflow Trainer, which makes one."""

from __future__ import annotations

from datetime import UTC, datetime

from ..errors import Object, copied
from ..resources import CLUSTER_TRAINING_RUNTIMES, JOB_SETS, JOBS, SERVICES, TRAIN_JOBS, TRAINING_RUNTIMES
from ..store import key_of, parse_time
from .base import Controller, condition, find_condition, put_condition

PREFIX = "jobset.sigs.k8s.io/"
TORCH_PORT = 29400


class JobSetController(Controller):
    """Knows suspension, restarts of the whole set, success policies; not startup order and rules of failure."""

    resource = JOB_SETS
    name = "jobset"
    owned = (JOBS, SERVICES)

    def reconcile(self, thing: Object) -> None:
        owner = thing
        if owner["metadata"].get("deletionTimestamp"):
            return
        status: Object = copied(owner.get("status") or {})
        if condition(owner, "Completed") == "True" or condition(owner, "Failed") == "True":
            self._expire(owner)
            return
        restarts = status.setdefault("restarts", 0)
        status.setdefault("restartsCountTowardsMax", 0)
        jobs = {job["metadata"]["name"]: job for job in self.children(JOBS, owner)}
        for old in [
            job for job in jobs.values() if job["metadata"]["labels"][f"{PREFIX}restart-attempt"] != str(restarts)
        ]:
            self.remove(JOBS, old)
        self._make_service(owner)
        present = self._make_jobs(owner, jobs, restarts)
        self._suspend(owner, present, status)
        self._judge(owner, present, status)
        status["replicatedJobsStatus"] = [
            _summary(one["name"], present) for one in owner["spec"].get("replicatedJobs") or []
        ]
        self.say_status(owner, status)

    def _make_service(self, owner: Object) -> None:
        network = owner["spec"].get("network") or {}
        if not network.get("enableDNSHostnames", True) or self.children(SERVICES, owner):
            return
        name = network.get("subdomain") or owner["metadata"]["name"]
        spec = {
            "clusterIP": "None",
            "selector": {f"{PREFIX}jobset-name": owner["metadata"]["name"]},
            "publishNotReadyAddresses": network.get("publishNotReadyAddresses", True),
        }
        self.make(SERVICES, owner, {"metadata": {"name": name}, "spec": spec})

    def _make_jobs(self, owner: Object, jobs: dict[str, Object], restarts: int) -> list[Object]:
        present = []
        replicated = owner["spec"].get("replicatedJobs") or []
        total = sum(one.get("replicas", 1) for one in replicated)
        index = 0
        for one in replicated:
            for number in range(one.get("replicas", 1)):
                name = f"{owner['metadata']['name']}-{one['name']}-{number}"
                labels = {
                    f"{PREFIX}jobset-name": owner["metadata"]["name"],
                    f"{PREFIX}jobset-uid": owner["metadata"]["uid"],
                    f"{PREFIX}replicatedjob-name": one["name"],
                    f"{PREFIX}replicatedjob-replicas": str(one.get("replicas", 1)),
                    f"{PREFIX}job-index": str(number),
                    f"{PREFIX}job-global-index": str(index),
                    f"{PREFIX}global-replicas": str(total),
                    f"{PREFIX}restart-attempt": str(restarts),
                }
                job = jobs.get(name)
                if job is None:
                    job = self._make_job(owner, one, name, labels)
                if job["metadata"]["labels"][f"{PREFIX}restart-attempt"] == str(restarts):
                    present.append(job)
                index += 1
        return present

    def _make_job(self, owner: Object, one: Object, name: str, labels: dict[str, str]) -> Object:
        body: Object = copied(one["template"])
        meta = body.setdefault("metadata", {})
        meta["name"] = name
        annotations = {}
        if coordinator := owner["spec"].get("coordinator"):
            annotations[f"{PREFIX}coordinator"] = _coordinator(owner, coordinator)
        spec = body["spec"]
        spec.setdefault("completionMode", "Indexed")
        if spec["completionMode"] == "Indexed":
            spec.setdefault("completions", spec.setdefault("parallelism", 1))
        spec["suspend"] = bool(owner["spec"].get("suspend"))
        template = spec["template"]
        for target in (meta, template.setdefault("metadata", {})):
            target["labels"] = {**(target.get("labels") or {}), **labels}
            target["annotations"] = {**(target.get("annotations") or {}), **annotations}
        network = owner["spec"].get("network") or {}
        template["spec"].setdefault("restartPolicy", "OnFailure")
        if network.get("enableDNSHostnames", True):
            template["spec"]["subdomain"] = network.get("subdomain") or owner["metadata"]["name"]
        return self.make(JOBS, owner, body)

    def _suspend(self, owner: Object, jobs: list[Object], status: Object) -> None:
        wanted = bool(owner["spec"].get("suspend"))
        for job in jobs:
            if bool(job["spec"].get("suspend")) != wanted:
                self.store.change(JOBS, *key_of(job), lambda one: one["spec"].update({"suspend": wanted}))
        generation = owner["metadata"]["generation"]
        if wanted:
            put_condition(status, generation, "Suspended", ("True", "SuspendedJobs", "jobset is suspended"))
        elif find_condition({"status": status}, "Suspended"):
            put_condition(status, generation, "Suspended", ("False", "ResumeJobs", "jobset is resumed"))

    def _judge(self, owner: Object, jobs: list[Object], status: Object) -> None:
        generation = owner["metadata"]["generation"]
        failed = next((job for job in jobs if condition(job, "Failed") == "True"), None)
        if failed is not None:
            most = (owner["spec"].get("failurePolicy") or {}).get("maxRestarts")
            if most is not None and status["restartsCountTowardsMax"] < most:
                status["restarts"] += 1
                status["restartsCountTowardsMax"] += 1
                self.soon(key_of(owner))
                return
            said = "jobset failed due to one or more job failures"
            reason = "FailedJobs"
            if most is not None:
                first = f"(first failed job: {failed['metadata']['name']})"
                said, reason = f"jobset failed due to reaching max number of restarts {first}", "ReachedMaxRestarts"
            put_condition(status, generation, "Failed", ("True", reason, said))
            status["terminalState"] = "Failed"
            self._end(jobs)
            return
        policy = owner["spec"].get("successPolicy") or {"operator": "All"}
        targets = policy.get("targetReplicatedJobs")
        chosen = [
            job for job in jobs if not targets or job["metadata"]["labels"][f"{PREFIX}replicatedjob-name"] in targets
        ]
        done = [condition(job, "Complete") == "True" for job in chosen]
        if done and (all(done) if policy["operator"] == "All" else any(done)):
            put_condition(
                status, generation, "Completed", ("True", "AllJobsCompleted", "jobset completed successfully")
            )
            status["terminalState"] = "Completed"
            self._end(jobs)

    def _end(self, jobs: list[Object]) -> None:
        """The jobs that still run are deleted when the set is over."""
        for job in jobs:
            if condition(job, "Complete") != "True" and condition(job, "Failed") != "True":
                self.remove(JOBS, job)

    def _expire(self, owner: Object) -> None:
        ttl = owner["spec"].get("ttlSecondsAfterFinished")
        if ttl is None:
            return
        ended = next(one for one in owner["status"]["conditions"] if one["type"] in ("Completed", "Failed"))
        left = ttl - (datetime.now(UTC) - parse_time(ended["lastTransitionTime"])).total_seconds()
        if left > 0:
            self.later(key_of(owner), left)
        else:
            self.remove(JOB_SETS, owner, propagation="Foreground")


def _coordinator(owner: Object, coordinator: Object) -> str:
    name = owner["metadata"]["name"]
    subdomain = (owner["spec"].get("network") or {}).get("subdomain") or name
    job, pod = coordinator.get("jobIndex", 0), coordinator.get("podIndex", 0)
    return f"{name}-{coordinator['replicatedJob']}-{job}-{pod}.{subdomain}"


def _summary(name: str, jobs: list[Object]) -> Object:
    mine = [job for job in jobs if job["metadata"]["labels"][f"{PREFIX}replicatedjob-name"] == name]
    wanted = [job["spec"].get("parallelism", 1) for job in mine]
    ready = [(job.get("status") or {}).get("ready", 0) + (job.get("status") or {}).get("succeeded", 0) for job in mine]
    return {
        "name": name,
        "ready": sum(have >= want for have, want in zip(ready, wanted, strict=True)),
        "succeeded": sum(condition(job, "Complete") == "True" for job in mine),
        "failed": sum(condition(job, "Failed") == "True" for job in mine),
        "active": sum(bool((job.get("status") or {}).get("active")) for job in mine),
        "suspended": sum(bool(job["spec"].get("suspend")) for job in mine),
    }


class TrainJobController(Controller):
    """Makes a JobSet of a runtime and a TrainJob: nodes, image, command, torchrun's environment."""

    resource = TRAIN_JOBS
    name = "trainjob-controller"
    owned = (JOB_SETS,)

    def reconcile(self, thing: Object) -> None:
        owner = thing
        if owner["metadata"].get("deletionTimestamp"):
            return
        runtime = self._runtime(owner)
        status: Object = copied(owner.get("status") or {})
        generation = owner["metadata"]["generation"]
        if runtime is None:
            name = owner["spec"]["runtimeRef"]["name"]
            said = f'ClusterTrainingRuntime "{name}" not found'
            put_condition(status, generation, "Failed", ("True", "TrainingRuntimeNotSupported", said))
            self.say_status(owner, status)
            return
        made = next(iter(self.children(JOB_SETS, owner)), None)
        if made is None:
            made = self.make(JOB_SETS, owner, self._job_set(owner, runtime))
        suspend = bool(owner["spec"].get("suspend"))
        if bool(made["spec"].get("suspend")) != suspend:
            self.store.change(JOB_SETS, *key_of(made), lambda one: one["spec"].update({"suspend": suspend}))
        if suspend:
            put_condition(status, generation, "Suspended", ("True", "Suspended", "TrainJob is suspended"))
        elif find_condition(owner, "Suspended"):
            put_condition(status, generation, "Suspended", ("False", "Resumed", "TrainJob is resumed"))
        for theirs, ours, reason in (("Completed", "Complete", "JobsCompleted"), ("Failed", "Failed", "JobsFailed")):
            if found := find_condition(made, theirs):
                put_condition(status, generation, ours, (found["status"], reason, found["message"]))
        jobs = (made.get("status") or {}).get("replicatedJobsStatus") or []
        status["jobsStatus"] = jobs
        self.say_status(owner, status)

    def _runtime(self, owner: Object) -> Object | None:
        reference = owner["spec"]["runtimeRef"]
        if reference.get("kind", "ClusterTrainingRuntime") == "TrainingRuntime":
            return self.store.find(TRAINING_RUNTIMES, owner["metadata"]["namespace"], reference["name"])
        return self.store.find(CLUSTER_TRAINING_RUNTIMES, "", reference["name"])

    def _job_set(self, owner: Object, runtime: Object) -> Object:
        name, trainer = owner["metadata"]["name"], owner["spec"].get("trainer") or {}
        spec: Object = copied(runtime["spec"]["template"]["spec"])
        policy = runtime["spec"].get("mlPolicy") or {}
        nodes = trainer.get("numNodes") or policy.get("numNodes") or 1
        for one in spec["replicatedJobs"]:
            labels = (one["template"].get("metadata") or {}).get("labels") or {}
            if labels.get("trainer.kubeflow.org/trainjob-ancestor-step") != "trainer":
                continue
            job = one["template"]["spec"]
            job["parallelism"] = job["completions"] = nodes
            job["template"]["spec"].setdefault("restartPolicy", "Never")
            container = next(c for c in job["template"]["spec"]["containers"] if c["name"] == "node")
            for key in ("image", "command", "args"):
                if trainer.get(key):
                    container[key] = trainer[key]
            if trainer.get("resourcesPerNode"):
                container["resources"] = trainer["resourcesPerNode"]
            torch = {
                "PET_NNODES": str(nodes),
                "PET_NPROC_PER_NODE": _processes(container),
                "PET_MASTER_ADDR": f"{name}-{one['name']}-0-0.{name}",
                "PET_MASTER_PORT": str(TORCH_PORT),
            }
            rank = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
            env = [*(container.get("env") or []), *(trainer.get("env") or [])]
            env += [{"name": key, "value": value} for key, value in torch.items()]
            container["env"] = [*env, {"name": "PET_NODE_RANK", "valueFrom": rank}]
        spec["suspend"] = bool(owner["spec"].get("suspend"))
        spec.setdefault("network", {"publishNotReadyAddresses": True})
        meta = {
            "name": name,
            "labels": owner["spec"].get("labels") or {},
            "annotations": owner["spec"].get("annotations") or {},
        }
        return {"metadata": meta, "spec": spec}


def _processes(container: Object) -> str:
    """As many processes a node as it has GPUs."""
    limits = (container.get("resources") or {}).get("limits") or {}
    return next((str(amount) for what, amount in limits.items() if what.endswith("/gpu")), "1")


def torch_runtime() -> Object:
    """The runtime that Kubeflow Trainer installs under the name ``torch-distributed``."""
    container = {"name": "node", "image": "pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime", "command": ["torchrun"]}
    job = {"template": {"spec": {"containers": [container]}}}
    labels = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    return {
        "metadata": {"name": "torch-distributed", "labels": {"trainer.kubeflow.org/framework": "torch"}},
        "spec": {
            "mlPolicy": {"numNodes": 1, "torch": {}},
            "template": {
                "spec": {
                    "replicatedJobs": [{"name": "node", "template": {"metadata": {"labels": labels}, "spec": job}}]
                }
            },
        },
    }
