"""The pods of the fake Kubernetes run processes, and fare as pods do."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from pathlib import Path

import pytest
from kubernetes import client, config, watch
from kubernetes.aio import client as aio_client
from kubernetes.aio import config as aio_config
from kubernetes.client.rest import ApiException
from kubernetes.stream import stream
from websocket import WebSocketConnectionClosedException

from tests.fake_kubernetes import ExecAnswer, FakeCluster, NodeSpec, plain_image, running
from tests.fake_kubernetes.resources import (
    PODS,
)
from tests.fixtures.kubernetes import (
    Thing,
    ask,
    execute,
    has_condition,
    is_running,
    phase_is,
    pod,
    reasons,
    waits_for,
)

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


def test_without_processes_commands_answer_by_the_law(tmp_path: Path) -> None:
    def answer(name: str, command: list[str], stdin: bytes) -> ExecAnswer:
        return ExecAnswer(stdout=f"{name} {command[0]}".encode() + stdin, exit_code=4)

    with running(tmp_path / "cluster", exec_law=answer) as cluster:
        core = client.CoreV1Api(config.new_client_from_config(str(cluster.kubeconfig())))
        core.create_namespaced_pod("default", pod("one"))
        cluster.wait(PODS, "one", is_running)

        assert execute(core, "default", "one", "hello", stdin=b" there") == (4, "one hello there", "")
