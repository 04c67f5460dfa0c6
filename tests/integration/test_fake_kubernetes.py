"""The fake Kubernetes answers the official client as a cluster does, and its pods fare as pods do."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3
from kubernetes import client, config, watch
from kubernetes.aio import client as aio_client
from kubernetes.aio import config as aio_config
from kubernetes.client.rest import ApiException
from kubernetes.stream import stream
from kubernetes.stream.ws_client import V5_CHANNEL_PROTOCOL
from websocket import WebSocketConnectionClosedException

from tests.fake_kubernetes import ExecAnswer, FakeCluster, NodeSpec, PodLaw, plain_image, running
from tests.fake_kubernetes.fixtures import cluster as a_cluster
from tests.fake_kubernetes.resources import (
    CLAIMS,
    CONFIG_MAPS,
    EVENTS,
    JOB_SETS,
    JOBS,
    LEADER_WORKER_SETS,
    PODS,
    SANDBOX_CLAIMS,
    STATEFUL_SETS,
    WARM_POOLS,
)

Thing = dict[str, Any]
QUICK = PodLaw(backoff_s=0.05, watch_interval_s=0.05)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    nodes = [NodeSpec("node-0"), NodeSpec("node-1"), NodeSpec("gpu-0", resources={"nvidia.com/gpu": "2"})]
    with running(folder, images=[plain_image("*")], law=QUICK, nodes=nodes) as made:
        yield made


@pytest.fixture(scope="module")
def core(cluster: FakeCluster) -> client.CoreV1Api:
    return client.CoreV1Api(config.new_client_from_config(str(cluster.kubeconfig())))


@pytest.fixture
def namespace(cluster: FakeCluster, core: client.CoreV1Api, request: pytest.FixtureRequest) -> Iterator[str]:
    name = re.sub("[^a-z0-9]+", "-", request.node.name.lower())[:60].strip("-")
    core.create_namespace({"metadata": {"name": name}})
    yield name
    cluster.no_more_trouble()
    core.delete_namespace(name)


def pod(name: str, script: str = "exec sleep 1000", *, container: Thing | None = None, **spec: Any) -> Thing:
    made = {"name": "main", "image": "debian:12", "command": ["sh", "-c", script], **(container or {})}
    return {
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [made], "terminationGracePeriodSeconds": 0, **spec},
    }


def phase_is(phase: str) -> Callable[[Thing], bool]:
    return lambda thing: bool(thing["status"]["phase"] == phase)


is_running = phase_is("Running")


def has_condition(kind: str) -> Callable[[Thing], bool]:
    return lambda thing: any(
        one["type"] == kind and one["status"] == "True" for one in (thing.get("status") or {}).get("conditions") or []
    )


def waits_for(reason: str) -> Callable[[Thing], bool]:
    def test(thing: Thing) -> bool:
        states = [one["state"] for one in thing["status"].get("containerStatuses") or []]
        return any(state.get("waiting", {}).get("reason") == reason for state in states)

    return test


def reasons(cluster: FakeCluster, namespace: str) -> set[str]:
    return {event["reason"] for event in cluster.objects(EVENTS, namespace)}


def execute(
    core: client.CoreV1Api, namespace: str, name: str, *command: str, stdin: bytes | None = None
) -> tuple[int, str, str]:
    """Run a command as the client does: v4 without, v5 with standard input (which only v5 can end)."""
    api = client.CoreV1Api(client.ApiClient(core.api_client.configuration))
    if stdin is not None:
        api.api_client.set_default_header("sec-websocket-protocol", V5_CHANNEL_PROTOCOL)
    socket = stream(
        api.connect_get_namespaced_pod_exec, name, namespace, command=list(command),
        stderr=True, stdout=True, stdin=stdin is not None, tty=False, _preload_content=False, binary=True,
    )  # fmt: skip
    if stdin is not None:
        socket.write_stdin(stdin)
        socket.close_channel(0)
    out, err = b"", b""
    while socket.is_open():
        socket.update(timeout=5)
        out += socket.read_stdout() if socket.peek_stdout() else b""
        err += socket.read_stderr() if socket.peek_stderr() else b""
    return socket.returncode, out.decode(), err.decode()


def ask(
    core: client.CoreV1Api, method: str, path: str, body: Any = None, content: str = "application/json", **query: Any
) -> tuple[int, Any]:
    """A request that the client's own models do not check."""
    headers = {"Content-Type": content, "Accept": "application/json"}
    parts = core.api_client.param_serialize(
        method, path, query_params=list(query.items()), header_params=headers, body=body, auth_settings=["BearerToken"]
    )
    try:
        response = core.api_client.call_api(*parts)
    except ApiException as error:
        return error.status, json.loads(error.body)
    response.read()
    return response.status, json.loads(response.data)


# Containers


def test_a_pod_runs_a_process_that_commands_enter(cluster: FakeCluster, core: client.CoreV1Api, namespace: str) -> None:
    core.create_namespaced_pod(namespace, pod("one", "echo here; exec sleep 1000"))
    cluster.wait(PODS, "one", is_running, namespace=namespace)

    code, out, err = execute(core, namespace, "one", "sh", "-c", "cat /proc/1/comm; echo bad >&2; exit 3")

    assert (code, out, err) == (3, "sleep\n", "bad\n")
    assert core.read_namespaced_pod_log("one", namespace) == "here\n"
    assert {"Scheduled", "Pulled", "Created", "Started"} <= reasons(cluster, namespace)


def test_standard_input_ends_over_the_fifth_protocol(
    cluster: FakeCluster, core: client.CoreV1Api, namespace: str
) -> None:
    core.create_namespaced_pod(namespace, pod("one"))
    cluster.wait(PODS, "one", is_running, namespace=namespace)

    sent = b"x" * 200_000

    code, out, _ = execute(core, namespace, "one", "sha256sum", stdin=sent)

    assert code == 0
    assert out.split()[0] == hashlib.sha256(sent).hexdigest()


async def test_the_asynchronous_client_executes_as_well(
    cluster: FakeCluster, core: client.CoreV1Api, namespace: str
) -> None:
    from kubernetes.aio.stream import WsApiClient

    core.create_namespaced_pod(namespace, pod("one"))
    await asyncio.to_thread(cluster.wait, PODS, "one", is_running, namespace=namespace)
    configuration = aio_client.Configuration()
    await aio_config.load_kube_config(str(cluster.kubeconfig()), client_configuration=configuration)

    async with WsApiClient(configuration) as api:
        out = await aio_client.CoreV1Api(api).connect_get_namespaced_pod_exec(
            "one", namespace, command=["sh", "-c", "printf $((6*7))"], stderr=True, stdin=False, stdout=True, tty=False
        )

    assert out == "42"


@pytest.mark.parametrize(
    ("command", "said"),
    [(["nosuch"], 'exec: "nosuch": executable file not found in $PATH'), (["/no/such"], "stat /no/such")],
)
def test_a_command_that_is_not_there_is_an_error_of_the_runtime(
    cluster: FakeCluster, core: client.CoreV1Api, namespace: str, command: list[str], said: str
) -> None:
    core.create_namespaced_pod(namespace, pod("one"))
    cluster.wait(PODS, "one", is_running, namespace=namespace)
    socket = stream(
        core.connect_get_namespaced_pod_exec, "one", namespace, command=command, stdout=True, _preload_content=False
    )

    socket.run_forever(timeout=10)

    status = json.loads(socket.read_channel(3))
    assert (status["status"], status["code"]) == ("Failure", 500)
    assert said in status["message"]


def test_exec_fails_on_its_way_as_it_is_told_to(cluster: FakeCluster, core: client.CoreV1Api, namespace: str) -> None:
    core.create_namespaced_pod(namespace, pod("one"))
    cluster.wait(PODS, "one", is_running, namespace=namespace)

    cluster.break_exec("refuse")
    with pytest.raises(ApiException) as refused:
        execute(core, namespace, "one", "true")
    cluster.break_exec("silent")
    silent = stream(
        core.connect_get_namespaced_pod_exec, "one", namespace, command=["true"], stdout=True, _preload_content=False
    )
    silent.run_forever(timeout=5)
    cluster.break_exec("drop", after_bytes=10)
    dropped = stream(
        core.connect_get_namespaced_pod_exec, "one", namespace, command=["seq", "1000"], stdout=True,
        _preload_content=False,
    )  # fmt: skip
    with pytest.raises(WebSocketConnectionClosedException):
        dropped.run_forever(timeout=5)

    assert refused.value.status in (0, 500)
    assert silent.read_channel(3) == ""
    assert dropped.read_stdout() == "1\n2\n3\n4\n5\n"
    assert execute(core, namespace, "one", "true")[0] == 0


def test_variables_volumes_and_the_downward_api_reach_the_process(
    cluster: FakeCluster, core: client.CoreV1Api, namespace: str
) -> None:
    core.create_namespaced_config_map(namespace, {"metadata": {"name": "settings"}, "data": {"a.txt": "from a map"}})
    core.create_namespaced_secret(namespace, {"metadata": {"name": "keys"}, "stringData": {"KEY": "hidden"}})
    fields = {"IP": "status.podIP", "NAME": "metadata.name", "APP": "metadata.labels['app']"}
    container = {
        "env": [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
        + [{"name": "BOTH", "value": "$(NAME)-$(APP) $$(NAME)"}],
        "envFrom": [{"secretRef": {"name": "keys"}}],
        "volumeMounts": [{"name": "settings", "mountPath": "/etc/settings"}, {"name": "scratch", "mountPath": "/s"}],
        "args": ["$(NAME)"],
    }
    script = 'echo "$IP|$BOTH|$KEY|$(cat /etc/settings/a.txt)|$0|$(touch /s/x && ls /s)"'
    volumes = [{"name": "settings", "configMap": {"name": "settings"}}, {"name": "scratch", "emptyDir": {}}]
    core.create_namespaced_pod(
        namespace, pod("one", script, container=container, volumes=volumes, restartPolicy="Never")
    )

    done = cluster.wait(PODS, "one", phase_is("Succeeded"), namespace=namespace)

    ip = done["status"]["podIP"]
    assert core.read_namespaced_pod_log("one", namespace) == f"{ip}|one-one $(NAME)|hidden|from a map|one|x\n"
    assert done["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] == "Completed"


def test_a_service_account_reads_what_its_role_says_and_no_more(
    cluster: FakeCluster, core: client.CoreV1Api, namespace: str
) -> None:
    rbac = client.RbacAuthorizationV1Api(core.api_client)
    core.create_namespaced_service_account(namespace, {"metadata": {"name": "reader"}})
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
    rbac.create_namespaced_role(namespace, {"metadata": {"name": "reader"}, "rules": [rule]})
    rbac.create_namespaced_role_binding(
        namespace,
        {
            "metadata": {"name": "reader"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
            "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": namespace}],
        },
    )
    kubeconfig = cluster.service_account_kubeconfig(namespace, "reader")
    theirs = client.CoreV1Api(config.new_client_from_config(str(kubeconfig)))

    assert theirs.list_namespaced_pod(namespace).items == []
    code, status = ask(theirs, "POST", f"/api/v1/namespaces/{namespace}/pods", pod("one"))
    assert (code, status["reason"]) == (403, "Forbidden")
    assert status["message"] == (
        f'pods is forbidden: User "system:serviceaccount:{namespace}:reader" cannot create resource "pods" in API '
        f'group "" in the namespace "{namespace}"'
    )
    review = client.AuthorizationV1Api(theirs.api_client).create_self_subject_access_review(
        {"spec": {"resourceAttributes": {"verb": "list", "resource": "pods", "namespace": namespace}}}
    )
    assert review.status.allowed


# What becomes of pods


@pytest.mark.parametrize(("fault", "reason"), [("kill_pod", "Error"), ("oom", "OOMKilled")])
def test_a_killed_container_is_told_from_one_that_ran_out_of_memory(
    cluster: FakeCluster, core: client.CoreV1Api, namespace: str, fault: str, reason: str
) -> None:
    core.create_namespaced_pod(namespace, pod("one", restartPolicy="Never"))
    cluster.wait(PODS, "one", is_running, namespace=namespace)

    getattr(cluster, fault)("one", namespace)

    failed = cluster.wait(PODS, "one", phase_is("Failed"), namespace=namespace)
    terminated = failed["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (terminated["reason"], terminated["exitCode"]) == (reason, 137)


def test_an_evicted_pod_says_so(cluster: FakeCluster, core: client.CoreV1Api, namespace: str) -> None:
    core.create_namespaced_pod(namespace, pod("one"))
    cluster.wait(PODS, "one", is_running, namespace=namespace)

    cluster.evict("one", namespace)

    failed = cluster.wait(PODS, "one", phase_is("Failed"), namespace=namespace)
    assert failed["status"]["reason"] == "Evicted"
    assert has_condition("DisruptionTarget")(failed)
    assert "Evicted" in reasons(cluster, namespace)


def test_a_container_that_always_restarts_backs_off(
    cluster: FakeCluster, core: client.CoreV1Api, namespace: str
) -> None:
    core.create_namespaced_pod(namespace, pod("one", "echo last words > /dev/termination-log; exit 5"))

    waiting = cluster.wait(PODS, "one", waits_for("CrashLoopBackOff"), namespace=namespace)

    before = waiting["status"]["containerStatuses"][0]["lastState"]["terminated"]
    assert (before["exitCode"], before["message"]) == (5, "last words\n")
    assert waiting["status"]["phase"] == "Running"


@pytest.mark.parametrize(
    ("container", "reason"),
    [
        ({"image": "missing/image:1"}, "ImagePullBackOff"),
        ({"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "no", "key": "a"}}}]},
         "CreateContainerConfigError"),
    ],
)  # fmt: skip
def test_a_container_that_cannot_start_says_why(
    cluster: FakeCluster, core: client.CoreV1Api, namespace: str, container: Thing, reason: str
) -> None:
    core.create_namespaced_pod(namespace, pod("one", container=container))

    waiting = cluster.wait(PODS, "one", waits_for(reason), namespace=namespace)

    assert waiting["status"]["phase"] == "Pending"


def test_a_pod_that_fits_nowhere_is_unschedulable_until_it_does(
    cluster: FakeCluster, core: client.CoreV1Api, namespace: str
) -> None:
    wants = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    core.create_namespaced_pod(namespace, pod("first", container=wants))
    first = cluster.wait(PODS, "first", is_running, namespace=namespace)
    core.create_namespaced_pod(namespace, pod("second", container=wants, preemptionPolicy="Never"))

    def unschedulable(thing: Thing) -> bool:
        return any(one.get("reason") == "Unschedulable" for one in thing["status"].get("conditions") or [])

    second = cluster.wait(PODS, "second", unschedulable, namespace=namespace)
    core.delete_namespaced_pod("first", namespace)

    assert first["spec"]["nodeName"] == "gpu-0"
    assert "3 Insufficient nvidia.com/gpu" in second["status"]["conditions"][0]["message"]
    cluster.wait(PODS, "second", is_running, namespace=namespace)


def test_a_deadline_ends_a_pod(cluster: FakeCluster, core: client.CoreV1Api, namespace: str) -> None:
    core.create_namespaced_pod(namespace, pod("one", activeDeadlineSeconds=1))

    failed = cluster.wait(PODS, "one", phase_is("Failed"), namespace=namespace)

    assert failed["status"]["reason"] == "DeadlineExceeded"


def test_a_deleted_pod_may_end_in_its_grace_period(
    cluster: FakeCluster, core: client.CoreV1Api, namespace: str
) -> None:
    script = "trap 'echo bye > /data/said; exit 0' TERM; touch /ready; while :; do sleep 0.05; done"
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    core.create_namespaced_persistent_volume_claim(namespace, {"metadata": {"name": "data"}, "spec": claim})
    container = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    probe = {"readinessProbe": {"exec": {"command": ["test", "-e", "/ready"]}}}
    kept = {"volumes": volumes, "restartPolicy": "Never", "terminationGracePeriodSeconds": 20}
    core.create_namespaced_pod(namespace, pod("one", script, container={**container, **probe}, **kept))
    cluster.wait(PODS, "one", has_condition("Ready"), namespace=namespace)

    core.delete_namespaced_pod("one", namespace)
    core.create_namespaced_pod(
        namespace, pod("two", "until cat /data/said; do sleep 0.05; done", container=container, **kept)
    )

    cluster.wait(PODS, "two", phase_is("Succeeded"), namespace=namespace)
    assert core.read_namespaced_pod_log("two", namespace).endswith("bye\n")


def test_the_pods_of_a_lost_node_go_with_it(tmp_path: Path) -> None:
    with running(tmp_path / "cluster", nodes=[NodeSpec("node-0")]) as cluster:
        core = client.CoreV1Api(config.new_client_from_config(str(cluster.kubeconfig())))
        core.create_namespaced_pod("default", pod("one", terminationGracePeriodSeconds=1))
        cluster.wait(PODS, "one", is_running)
        version = core.list_namespaced_pod("default").metadata.resource_version

        cluster.lose_node("node-0")

        events = list(
            watch.Watch().stream(core.list_namespaced_pod, "default", resource_version=version, timeout_seconds=1)
        )
    last = events[-1]["object"]
    assert events[-1]["type"] == "DELETED"
    assert {one.reason for one in last.status.conditions if one.type == "DisruptionTarget"} == {"DeletionByPodGC"}
    assert last.status.phase == "Failed"


# The API


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


# Owners and controllers


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


def custom(core: client.CoreV1Api, namespace: str, group: str, plural: str, kind: str, **spec: Any) -> None:
    group, _, version = group.partition("/")
    body = {"apiVersion": f"{group}/{version}", "kind": kind, "metadata": {"name": "one"}, "spec": spec}
    client.CustomObjectsApi(core.api_client).create_namespaced_custom_object(group, version, namespace, plural, body)


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


def test_nothing_is_left_of_a_cluster_that_ends(tmp_path: Path) -> None:
    marked = f"sh -c 'sleep 1000; : {tmp_path}'"
    with running(tmp_path / "cluster", images=[plain_image("*")]) as cluster:
        core = client.CoreV1Api(config.new_client_from_config(str(cluster.kubeconfig())))
        core.create_namespaced_pod("default", pod("one", f"setsid {marked} & exec {marked}"))
        cluster.wait(PODS, "one", is_running)
        execute(core, "default", "one", "sh", "-c", f"setsid {marked} >/dev/null 2>&1 &")
        assert len(commands_with(str(tmp_path))) >= 3

    assert commands_with(str(tmp_path)) == []
    assert not (tmp_path / "cluster" / "run").exists()


def commands_with(text: str) -> list[bytes]:
    """The commands of all processes that have a text in them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes())
    return [command for command in found if text.encode() in command]


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


def test_an_open_watch_ends_when_the_server_goes(cluster: FakeCluster, core: client.CoreV1Api, namespace: str) -> None:
    events = watch.Watch().stream(core.list_namespaced_config_map, namespace, _request_timeout=20)
    assert next(events)["object"].metadata.name == "kube-root-ca.crt"

    cluster.restart_api()

    with pytest.raises((urllib3.exceptions.ProtocolError, urllib3.exceptions.SSLError, OSError)):
        next(events)


def test_without_processes_commands_answer_by_the_law(tmp_path: Path) -> None:
    def answer(name: str, command: list[str], stdin: bytes) -> ExecAnswer:
        return ExecAnswer(stdout=f"{name} {command[0]}".encode() + stdin, exit_code=4)

    with running(tmp_path / "cluster", exec_law=answer) as cluster:
        core = client.CoreV1Api(config.new_client_from_config(str(cluster.kubeconfig())))
        core.create_namespaced_pod("default", pod("one"))
        cluster.wait(PODS, "one", is_running)

        assert execute(core, "default", "one", "hello", stdin=b" there") == (4, "one hello there", "")


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
