"""A Kubernetes for tests: the API over real HTTP, and a cluster's behaviour behind it.

`running` starts one in a thread of the test's process; the official client talks to it through the kubeconfig that
`FakeCluster.kubeconfig` writes. Who reads on: `cluster` is what tests hold, `http` takes requests in, `api` does the
verbs on the `store`, `watch` and `exec` are the two long answers. `scheduler`, `kubelet` and `controllers` see every
change of the store and write others. Containers are real processes (`process_runtime`) or just a law (`law_runtime`).

What it does not have: networks of its own (pods share the host's, told apart by loopback addresses; network policies
are stored and not enforced), cgroups (memory limits bind by `FakeCluster.oom` only), terminals, and the parts of
objects that nobody here reads.
"""

from .cluster import FakeCluster, running
from .law import PodLaw
from .law_runtime import ExecAnswer
from .machine import NodeSpec
from .process_runtime import ImageRule, plain_image, project_image

__all__ = ["ExecAnswer", "FakeCluster", "ImageRule", "NodeSpec", "PodLaw", "plain_image", "project_image", "running"]
