"""The fake Kubernetes answers the official client as a cluster does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client, config, watch
from kubernetes.client.rest import ApiException
from kubernetes.stream import stream

from tests.fake_kubernetes import FakeCluster, plain_image, running
from tests.fake_kubernetes.resources import PODS


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCluster]:
    with running(tmp_path_factory.mktemp("cluster"), images=[plain_image("*")]) as made:
        yield made


@pytest.fixture(scope="module")
def core(cluster: FakeCluster) -> client.CoreV1Api:
    return client.CoreV1Api(config.new_client_from_config(str(cluster.kubeconfig())))


@pytest.fixture
def namespace(core: client.CoreV1Api, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name.replace("_", "-")[:60].strip("-")
    core.create_namespace({"metadata": {"name": name}})
    yield name
    core.delete_namespace(name)


def pod(name: str, script: str = "sleep 1000", **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "debian:12", "command": ["sh", "-c", script]}
    return {
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec},
    }


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


def is_running(thing: dict[str, Any]) -> bool:
    return bool(thing["status"]["phase"] == "Running")


def execute(core: client.CoreV1Api, namespace: str, name: str, *command: str) -> tuple[int, str, str]:
    socket = stream(
        core.connect_get_namespaced_pod_exec, name, namespace, command=list(command),
        stderr=True, stdout=True, stdin=False, tty=False, _preload_content=False,
    )  # fmt: skip
    socket.run_forever(timeout=20)
    return socket.returncode, socket.read_stdout(), socket.read_stderr()


def test_a_pod_runs_a_process_that_commands_enter(cluster: FakeCluster, core: client.CoreV1Api, namespace: str) -> None:
    core.create_namespaced_pod(namespace, pod("one", "echo here; exec sleep 1000"))
    cluster.wait(PODS, "one", is_running, namespace=namespace)

    code, out, err = execute(core, namespace, "one", "sh", "-c", "cat /proc/1/comm; echo bad >&2; exit 3")

    assert (code, out, err) == (3, "sleep\n", "bad\n")
    assert core.read_namespaced_pod_log("one", namespace) == "here\n"


def test_a_watch_goes_on_where_a_list_ended(core: client.CoreV1Api, namespace: str) -> None:
    core.create_namespaced_config_map(namespace, {"metadata": {"name": "a"}})
    version = core.list_namespaced_config_map(namespace).metadata.resource_version
    core.create_namespaced_config_map(namespace, {"metadata": {"name": "b"}})
    core.delete_namespaced_config_map("a", namespace)

    events = watch.Watch().stream(
        core.list_namespaced_config_map, namespace, resource_version=version, timeout_seconds=1
    )

    assert [(event["type"], event["object"].metadata.name) for event in events] == [("ADDED", "b"), ("DELETED", "a")]


def test_an_unknown_field_is_refused_when_the_client_wants_it_strict(core: client.CoreV1Api, namespace: str) -> None:
    wrong = pod("wrong")
    wrong["spec"]["containers"][0]["imagee"] = "x"

    code, status = ask(
        core, "POST", f"/api/v1/namespaces/{namespace}/pods", wrong, fieldValidation="Strict", dryRun="All"
    )

    assert (code, status["reason"]) == (400, "BadRequest")
    assert 'strict decoding error: unknown field "spec.containers[0].imagee"' in status["message"]
