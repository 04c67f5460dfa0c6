"""One fake cluster for the tests of a module, and a namespace of it for each."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from kubernetes import client, config

from tests.fake_kubernetes import FakeCluster, NodeSpec, PodLaw, plain_image, running

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
