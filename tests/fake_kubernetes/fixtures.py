"""The cluster of a test: the fake one, or a real one that ``AGENTRL_TEST_KUBECONFIG`` names.

A test that takes a `TestCluster` runs on both. What only the fake can do (a node that is lost, an API server that
restarts) is asked of `TestCluster.fake`, which skips the test on a real cluster.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config

from . import FakeCluster, ImageRule, NodeSpec, PodLaw, running

REAL = "AGENTRL_TEST_KUBECONFIG"


@dataclass(frozen=True)
class TestCluster:
    """A cluster, and a namespace of it that is the test's own."""

    __test__ = False

    kubeconfig: Path
    namespace: str
    maybe_fake: FakeCluster | None

    @property
    def fake(self) -> FakeCluster:
        """The fake cluster, for what cannot be asked of a real one."""
        if self.maybe_fake is None:
            pytest.skip(f"a real cluster ({REAL}) cannot be made to do this")
        return self.maybe_fake

    @property
    def core(self) -> client.CoreV1Api:
        return client.CoreV1Api(config.new_client_from_config(str(self.kubeconfig)))

    def pods(self, labels: str = "") -> list[Any]:
        """The pods of the namespace."""
        found: list[Any] = self.core.list_namespaced_pod(self.namespace, label_selector=labels).items
        return found

    def kill_pod(self, name: str) -> None:
        """Delete a pod without grace: on both kinds of cluster its processes are killed."""
        self.core.delete_namespaced_pod(name, self.namespace, grace_period_seconds=0)

    def evict_pod(self, name: str) -> None:
        """Ask the eviction API."""
        body = {"metadata": {"name": name, "namespace": self.namespace}, "apiVersion": "policy/v1", "kind": "Eviction"}
        self.core.create_namespaced_pod_eviction(name, self.namespace, body)


@contextmanager
def cluster(
    folder: Path,
    *,
    images: Iterable[ImageRule] | None = None,
    nodes: Iterable[NodeSpec] = (NodeSpec("node-0"), NodeSpec("node-1")),
    law: PodLaw | None = None,
    serve: Iterable[str] = ("agent-sandbox", "jobset", "lws"),
) -> Iterator[TestCluster]:
    """The cluster that tests run on, with a fresh namespace. The arguments are for the fake one only."""
    if real := os.environ.get(REAL):
        with _namespace(Path(real)) as namespace:
            yield TestCluster(Path(real), namespace, None)
        return
    with (
        running(folder, images=images, nodes=nodes, law=law, serve=serve) as fake,
        _namespace(fake.kubeconfig()) as namespace,
    ):
        yield TestCluster(fake.kubeconfig(namespace=namespace), namespace, fake)


@contextmanager
def _namespace(kubeconfig: Path) -> Iterator[str]:
    core = client.CoreV1Api(config.new_client_from_config(str(kubeconfig)))
    name = f"agentrl-test-{secrets.token_hex(4)}"
    core.create_namespace({"metadata": {"name": name}})
    try:
        yield name
    finally:
        core.delete_namespace(name)
