"""What works behind the API of the fake Kubernetes: owners, jobs, sets, sandboxes, queues."""

from __future__ import annotations

from pathlib import Path

import pytest
from kubernetes import client, config

from tests.fake_kubernetes import FakeCluster, PodLaw, running
from tests.fake_kubernetes.resources import (
    CLAIMS,
    CONFIG_MAPS,
    JOB_SETS,
    JOBS,
    LEADER_WORKER_SETS,
    PODS,
    SANDBOX_CLAIMS,
    STATEFUL_SETS,
    WARM_POOLS,
)
from tests.fixtures.kubernetes import (
    custom,
    execute,
    has_condition,
    is_running,
    pod,
)


@pytest.mark.parametrize("propagation", ["Background", "Foreground", "Orphan"])
def test_dependents_go_with_their_owner_or_stay_as_it_was_asked(
    cluster: FakeCluster, core: client.CoreV1Api, namespace: str, propagation: str
) -> None:
    owner = core.create_namespaced_config_map(namespace, {"metadata": {"name": "owner"}})
    ref = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "owner",
        "uid": owner.metadata.uid,
        "blockOwnerDeletion": True,
    }
    core.create_namespaced_config_map(namespace, {"metadata": {"name": "owned", "ownerReferences": [ref]}})

    core.delete_namespaced_config_map("owner", namespace, propagation_policy=propagation)
    core.create_namespaced_config_map(namespace, {"metadata": {"name": "later"}})

    names = {one["metadata"]["name"] for one in cluster.objects(CONFIG_MAPS, namespace)}
    assert names - {"later", "kube-root-ca.crt"} == ({"owned"} if propagation == "Orphan" else set())


def test_a_job_starts_failed_indexes_again_and_reaches_its_end(
    cluster: FakeCluster, core: client.CoreV1Api, namespace: str
) -> None:
    batch = client.BatchV1Api(core.api_client)
    script = "test $JOB_COMPLETION_INDEX = 0 || test -e /shared/second || { touch /shared/second; exit 1; }"
    claim = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "shared",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    core.create_namespaced_persistent_volume_claim(namespace, {"metadata": {"name": "shared"}, "spec": claim})
    template = pod(
        "ignored", script, restartPolicy="Never", container={"volumeMounts": [{"name": "s", "mountPath": "/shared"}]},
        volumes=[{"name": "s", "persistentVolumeClaim": {"claimName": "shared"}}],
    )  # fmt: skip
    template["metadata"].pop("name")
    spec = {"completions": 2, "parallelism": 2, "completionMode": "Indexed", "template": template}
    batch.create_namespaced_job(namespace, {"metadata": {"name": "job"}, "spec": spec})

    done = cluster.wait(JOBS, "job", has_condition("Complete"), namespace=namespace)
    batch.delete_namespaced_job("job", namespace, propagation_policy="Foreground")
    core.delete_namespaced_persistent_volume_claim("shared", namespace)

    assert (done["status"]["completedIndexes"], done["status"]["failed"]) == ("0-1", 1)
    assert cluster.objects(JOBS, namespace) == []
    assert cluster.objects(CLAIMS, namespace) == []


def test_the_pods_of_a_stateful_set_find_each_other_by_name(
    cluster: FakeCluster, core: client.CoreV1Api, namespace: str
) -> None:
    selector = {"app": "set"}
    core.create_namespaced_service(
        namespace, {"metadata": {"name": "set"}, "spec": {"clusterIP": "None", "selector": selector}}
    )
    service = {"selector": selector, "ports": [{"port": 8080, "targetPort": "http"}]}
    core.create_namespaced_service(namespace, {"metadata": {"name": "web"}, "spec": service})
    container = {
        "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "ports": [{"name": "http", "containerPort": 8000}],
        "readinessProbe": {"exec": {"command": ["test", "-e", "/up"]}},
        "command": ["python3", "-c", SERVER],
    }
    template = pod("ignored", container=container)
    template["metadata"] = {"labels": selector}
    spec = {"replicas": 2, "serviceName": "set", "selector": {"matchLabels": selector}, "template": template}
    client.AppsV1Api(core.api_client).create_namespaced_stateful_set(
        namespace, {"metadata": {"name": "set"}, "spec": spec}
    )
    cluster.wait(STATEFUL_SETS, "set", lambda one: one["status"].get("readyReplicas") == 2, namespace=namespace)

    uid = cluster.wait(PODS, "set-1", is_running, namespace=namespace)["metadata"]["uid"]
    core.delete_namespaced_pod("set-1", namespace)
    cluster.wait(PODS, "set-1", lambda one: one["metadata"]["uid"] != uid and is_running(one), namespace=namespace)
    cluster.wait(STATEFUL_SETS, "set", lambda one: one["status"].get("readyReplicas") == 2, namespace=namespace)
    code, out, err = execute(
        core, namespace, "set-0", "python3", "-c",
        "import socket; c = socket.create_connection(('web', 8080)); print(c.recv(99)); "
        "print(socket.gethostbyname('set-1.set') != socket.gethostbyname('set-0.set'))",
    )  # fmt: skip

    assert (code, out) == (0, "b'hello'\nTrue\n"), err


SERVER = """
import os, socket
s = socket.create_server((os.environ['IP'], 8000))
open('/up', 'w').close()
while True:
    c, _ = s.accept()
    c.sendall(b'hello')
    c.close()
"""


def test_a_claim_takes_a_warm_sandbox_out_of_its_pool(
    cluster: FakeCluster, core: client.CoreV1Api, namespace: str
) -> None:
    group = "extensions.agents.x-k8s.io/v1beta1"
    custom(core, namespace, group, "sandboxtemplates", "SandboxTemplate", podTemplate={"spec": pod("ignored")["spec"]})
    custom(
        core, namespace, group, "sandboxwarmpools", "SandboxWarmPool", replicas=1, sandboxTemplateRef={"name": "one"}
    )
    cluster.wait(WARM_POOLS, "one", lambda pool: pool["status"].get("readyReplicas") == 1, namespace=namespace)
    warm = cluster.objects(PODS, namespace)[0]

    custom(core, namespace, group, "sandboxclaims", "SandboxClaim", warmPoolRef={"name": "one"})
    claim = cluster.wait(SANDBOX_CLAIMS, "one", has_condition("Ready"), namespace=namespace)
    cluster.wait(WARM_POOLS, "one", lambda pool: pool["status"].get("readyReplicas") == 1, namespace=namespace)
    api = client.CustomObjectsApi(core.api_client)
    api.delete_namespaced_custom_object("extensions.agents.x-k8s.io", "v1beta1", namespace, "sandboxclaims", "one")

    assert claim["status"]["sandbox"] == {"name": warm["metadata"]["name"], "podIPs": [warm["status"]["podIP"]]}
    cluster.wait_gone(PODS, warm["metadata"]["name"], namespace=namespace)


def test_a_job_set_restarts_as_one(cluster: FakeCluster, core: client.CoreV1Api, namespace: str) -> None:
    template = {"spec": {**pod("ignored", "exit 1")["spec"], "restartPolicy": "Never"}}
    job = {"name": "ranks", "template": {"spec": {"backoffLimit": 0, "parallelism": 2, "template": template}}}
    custom(
        core, namespace, "jobset.x-k8s.io/v1alpha2", "jobsets", "JobSet", replicatedJobs=[job],
        failurePolicy={"maxRestarts": 1},
    )  # fmt: skip

    failed = cluster.wait(JOB_SETS, "one", has_condition("Failed"), namespace=namespace)

    assert (failed["status"]["restarts"], failed["status"]["conditions"][-1]["reason"]) == (1, "ReachedMaxRestarts")


def test_a_group_of_leader_and_workers_is_made_anew_together(
    cluster: FakeCluster, core: client.CoreV1Api, namespace: str
) -> None:
    group = {"size": 2, "workerTemplate": {"spec": pod("ignored")["spec"]}}
    custom(
        core,
        namespace,
        "leaderworkerset.x-k8s.io/v1",
        "leaderworkersets",
        "LeaderWorkerSet",
        leaderWorkerTemplate=group,
    )
    cluster.wait(LEADER_WORKER_SETS, "one", has_condition("Available"), namespace=namespace)
    leader = cluster.wait(PODS, "one-0", is_running, namespace=namespace)

    cluster.kill_pod("one-0-1", namespace)

    again = cluster.wait(
        PODS, "one-0", lambda one: one["metadata"]["uid"] != leader["metadata"]["uid"], namespace=namespace
    )
    assert again["spec"]["containers"][0]["env"][0] == {"name": "LWS_LEADER_ADDRESS", "value": f"one-0.one.{namespace}"}


def test_a_queue_holds_a_job_until_it_is_there(tmp_path: Path) -> None:
    with running(tmp_path / "cluster", serve=["kueue"], law=PodLaw(exit_after_s=0)) as cluster:
        core = client.CoreV1Api(config.new_client_from_config(str(cluster.kubeconfig())))
        template = pod("ignored", restartPolicy="Never")
        template["metadata"].pop("name")
        job = {
            "metadata": {"name": "job", "labels": {"kueue.x-k8s.io/queue-name": "one"}},
            "spec": {"template": template},
        }
        client.BatchV1Api(core.api_client).create_namespaced_job("default", job)
        cluster.wait(JOBS, "job", has_condition("Suspended"))
        held = cluster.objects(PODS)

        custom(core, "default", "kueue.x-k8s.io/v1beta1", "localqueues", "LocalQueue", clusterQueue="all")
        cluster.wait(JOBS, "job", has_condition("Complete"))

    assert held == []
