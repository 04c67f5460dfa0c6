"""The fake Kubernetes answers the official client as an API server does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import urllib3
from kubernetes import client, config, watch
from kubernetes.client.rest import ApiException

from tests.fake_kubernetes import FakeCluster, PodLaw, running
from tests.fake_kubernetes.fixtures import cluster as a_cluster
from tests.fake_kubernetes.resources import (
    PODS,
)
from tests.fixtures.kubernetes import Thing, ask, execute, is_running, phase_is, pod


def test_a_watch_goes_on_where_a_list_ended(core: client.CoreV1Api, namespace: str) -> None:
    core.create_namespaced_config_map(namespace, {"metadata": {"name": "a", "labels": {"x": "1"}}})
    version = core.list_namespaced_config_map(namespace).metadata.resource_version
    core.create_namespaced_config_map(namespace, {"metadata": {"name": "b", "labels": {"x": "1"}}})
    core.patch_namespaced_config_map("b", namespace, {"metadata": {"labels": {"x": "2"}}})
    core.delete_namespaced_config_map("a", namespace)

    events = watch.Watch().stream(
        core.list_namespaced_config_map, namespace, label_selector="x=1", resource_version=version, timeout_seconds=1
    )

    seen = [(event["type"], event["object"].metadata.name) for event in events]
    assert seen == [("ADDED", "b"), ("DELETED", "b"), ("DELETED", "a")]


def test_a_watch_from_before_the_history_is_told_to_list_again(tmp_path: Path) -> None:
    with running(tmp_path / "cluster", bookmark_s=0.05) as cluster:
        core = client.CoreV1Api(config.new_client_from_config(str(cluster.kubeconfig())))
        version = core.list_namespaced_config_map("default").metadata.resource_version
        for name in "ab":
            core.create_namespaced_config_map("default", {"metadata": {"name": name}})
        page = core.list_namespaced_config_map("default", limit=1)
        cluster.forget_history()

        with pytest.raises(ApiException) as gone:
            list(
                watch.Watch().stream(
                    core.list_namespaced_config_map, "default", resource_version=version, timeout_seconds=1
                )
            )
        code, status = ask(
            core, "GET", "/api/v1/namespaces/default/configmaps", **{"continue": page.metadata._continue}
        )
        path = "/api/v1/namespaces/default/configmaps"
        query = "watch=true&allowWatchBookmarks=true&timeoutSeconds=1"
        http = urllib3.PoolManager(ca_certs=str(cluster.ca_file))
        token = core.api_client.configuration.api_key["BearerToken"]
        lines = http.request("GET", f"{cluster.url}{path}?{query}", headers={"Authorization": token}).data.splitlines()

    assert gone.value.status == 410
    assert (code, status["reason"]) == (410, "Expired")
    assert json.loads(lines[-1])["type"] == "BOOKMARK"


def test_pages_of_a_list_are_of_one_moment(core: client.CoreV1Api, namespace: str) -> None:
    for number in range(4):
        core.create_namespaced_config_map(namespace, {"metadata": {"name": f"m{number}"}})
    first = core.list_namespaced_config_map(namespace, limit=3)
    core.delete_namespaced_config_map("m3", namespace)

    second = core.list_namespaced_config_map(namespace, limit=3, _continue=first.metadata._continue)

    names = [one.metadata.name for one in first.items + second.items]
    assert names == ["kube-root-ca.crt", "m0", "m1", "m2", "m3"]
    assert first.metadata.remaining_item_count == 2


def test_writes_conflict_as_they_do(core: client.CoreV1Api, namespace: str) -> None:
    made = core.create_namespaced_config_map(namespace, {"metadata": {"name": "a"}})
    core.patch_namespaced_config_map("a", namespace, {"data": {"x": "1"}})

    with pytest.raises(ApiException) as stale:
        core.replace_namespaced_config_map("a", namespace, made)
    with pytest.raises(ApiException) as twice:
        core.create_namespaced_config_map(namespace, {"metadata": {"name": "a"}})

    assert (stale.value.status, json.loads(stale.value.body)["reason"]) == (409, "Conflict")
    assert (twice.value.status, json.loads(twice.value.body)["reason"]) == (409, "AlreadyExists")


def test_each_kind_of_patch_does_what_it_is_for(core: client.CoreV1Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps/a"
    apply, merge, by_json = (
        f"application/{kind}" for kind in ("apply-patch+yaml", "merge-patch+json", "json-patch+json")
    )
    said = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"mine": "1", "both": "1"}}

    created, _ = ask(core, "PATCH", path, said, apply, fieldManager="one")
    ask(core, "PATCH", path, {"data": {"others": "2"}}, merge)
    ask(core, "PATCH", path, [{"op": "replace", "path": "/data/others", "value": "3"}], by_json)
    clash, status = ask(core, "PATCH", path, {**said, "data": {"both": "2"}}, apply, fieldManager="two")
    _, result = ask(core, "PATCH", path, {**said, "data": {"both": "1"}}, apply, fieldManager="one")

    assert created == 201
    assert (clash, status["details"]["causes"][0]["field"]) == (409, ".data.both")
    assert result["data"] == {"both": "1", "others": "3"}


def test_lists_are_merged_by_their_keys(core: client.CoreV1Api, namespace: str) -> None:
    account = {"metadata": {"name": "a"}, "secrets": [{"name": "one"}, {"name": "two"}]}
    core.create_namespaced_service_account(namespace, account)
    patch = {"secrets": [{"name": "three"}, {"name": "one", "$patch": "delete"}]}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/a"

    _, result = ask(core, "PATCH", path, patch, "application/strategic-merge-patch+json")

    assert [one["name"] for one in result["secrets"]] == ["two", "three"]


@pytest.mark.parametrize(
    ("wrong", "code", "said"),
    [
        ({"imagee": "x"}, 400, 'unknown field "spec.containers[0].imagee"'),
        ({"args": "x"}, 400, "cannot unmarshal string into Go struct field Container.spec.containers.args"),
        ({"image": ""}, 422, "spec.containers[0].image: Required value"),
        ({"volumeMounts": [{"name": "no", "mountPath": "/x"}]}, 422, 'volumeMounts[0].name: Not found: "no"'),
        ({"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}, 422, "less than or equal to cpu limit"),
    ],
)
def test_an_invalid_pod_is_refused_with_the_field(
    core: client.CoreV1Api, namespace: str, wrong: Thing, code: int, said: str
) -> None:
    body = pod("wrong", container=wrong)

    path = f"/api/v1/namespaces/{namespace}/pods"
    answered, status = ask(core, "POST", path, body, dryRun="All", fieldValidation="Strict")

    assert answered == code
    assert said in status["message"]


def test_a_quota_refuses_what_is_too_much(cluster: FakeCluster, core: client.CoreV1Api, namespace: str) -> None:
    hard = {"pods": "1", "requests.cpu": "1"}
    core.create_namespaced_resource_quota(namespace, {"metadata": {"name": "small"}, "spec": {"hard": hard}})
    container = {"resources": {"requests": {"cpu": "500m"}}}
    core.create_namespaced_pod(namespace, pod("one", container=container))

    code, status = ask(core, "POST", f"/api/v1/namespaces/{namespace}/pods", pod("two", container=container))
    without, says = ask(core, "POST", f"/api/v1/namespaces/{namespace}/pods", pod("three"))

    assert code == without == 403
    assert "exceeded quota: small, requested: pods=1, used: pods=1, limited: pods=1" in status["message"]
    assert "must specify requests.cpu for: main" in says["message"]


def test_trouble_comes_when_a_test_wants_it(cluster: FakeCluster, core: client.CoreV1Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    cluster.throttle(retry_after_s=7, verb="list", plural="configmaps")
    cluster.deny("configmaps", "not on Mondays", times=1)
    core.api_client.configuration.retries = False

    with pytest.raises(ApiException) as throttled:
        client.CoreV1Api(client.ApiClient(core.api_client.configuration)).list_namespaced_config_map(namespace)
    denied, status = ask(core, "POST", path, {"metadata": {"name": "a"}})
    cluster.fail(503, verb="create")
    failed, _ = ask(core, "POST", path, {"metadata": {"name": "a"}})

    assert (throttled.value.status, throttled.value.headers["Retry-After"]) == (429, "7")
    assert (denied, failed) == (403, 503)
    assert status["message"] == 'admission webhook "policy.example.com" denied the request: not on Mondays'
    assert ask(core, "GET", path)[0] == 200


def test_the_state_outlives_the_server_and_its_connections(
    cluster: FakeCluster, core: client.CoreV1Api, namespace: str
) -> None:
    core.create_namespaced_pod(namespace, pod("one"))
    before = cluster.wait(PODS, "one", is_running, namespace=namespace)

    cluster.restart_api()

    after = core.read_namespaced_pod("one", namespace)
    assert after.metadata.uid == before["metadata"]["uid"]
    assert execute(core, namespace, "one", "true")[0] == 0


def test_a_restricted_namespace_refuses_what_is_not(core: client.CoreV1Api, namespace: str) -> None:
    core.patch_namespace(namespace, {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}})
    path = f"/api/v1/namespaces/{namespace}/pods"
    context = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True}
    hard = pod("hard", container={"securityContext": {**context, "seccompProfile": {"type": "RuntimeDefault"}}})

    code, status = ask(core, "POST", path, pod("soft"), dryRun="All")

    assert code == 403
    assert (
        'violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false (container "main"'
        in status["message"]
    )
    assert ask(core, "POST", path, hard, dryRun="All")[0] == 201


def test_an_open_watch_ends_when_the_server_goes(cluster: FakeCluster, core: client.CoreV1Api, namespace: str) -> None:
    events = watch.Watch().stream(core.list_namespaced_config_map, namespace, _request_timeout=20)
    assert next(events)["object"].metadata.name == "kube-root-ca.crt"

    cluster.restart_api()

    with pytest.raises((urllib3.exceptions.ProtocolError, urllib3.exceptions.SSLError, OSError)):
        next(events)


def test_the_cluster_of_a_test_kills_and_evicts(tmp_path: Path) -> None:
    with a_cluster(tmp_path / "cluster", law=PodLaw()) as made:
        for name in ("killed", "evicted"):
            made.core.create_namespaced_pod(made.namespace, pod(name))
            made.fake.wait(PODS, name, is_running, namespace=made.namespace)

        made.kill_pod("killed")
        made.evict_pod("evicted")

        assert made.pods() == []


def test_a_cluster_of_its_own_process_tells_what_it_was_asked(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fake_kubernetes", str(tmp_path / "cluster"), "--nodes", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        kubeconfig = json.loads(process.stdout.readline())["kubeconfig"]
        core = client.CoreV1Api(config.new_client_from_config(kubeconfig))
        nodes = core.list_node().items
        process.stdin.close()
        told = json.loads(process.stdout.readline())

    assert [node.metadata.name for node in nodes] == ["node-0"]
    assert told == {"requests": {"list nodes": 1}, "busiest_second": 1}


def test_laws_of_latency_and_of_pods_can_be_changed_while_it_runs(tmp_path: Path) -> None:
    waits: list[str] = []
    with running(tmp_path / "cluster") as cluster:
        core = client.CoreV1Api(config.new_client_from_config(str(cluster.kubeconfig())))
        cluster.set_latency(lambda verb: waits.append(verb) or 0.0)
        cluster.set_law(PodLaw(exit_after_s=0, exit_code=3))
        core.create_namespaced_pod("default", pod("one", restartPolicy="Never"))

        cluster.wait(PODS, "one", phase_is("Failed"))

        assert cluster.counts["create", "pods"] == 1
    assert waits == ["create"]
