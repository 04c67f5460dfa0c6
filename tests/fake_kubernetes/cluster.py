"""`FakeCluster`: what a test holds. Starts the server in a thread of its own, and does to it what nature does."""

from __future__ import annotations

import asyncio
import concurrent.futures
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import yaml

from . import errors, machine
from .access import ADMIN, User, service_account
from .admission import Denial
from .errors import ApiError, Object
from .http import Request, Trouble
from .law import PodLaw
from .law_runtime import ExecLaw
from .machine import Machine, NodeSpec
from .process_runtime import ImageRule
from .resources import PODS, SERVICE_ACCOUNTS, Resource

T = TypeVar("T")


class FakeCluster:
    """A cluster that runs. Every method may be called from any thread; none is for the server's own loop."""

    def __init__(self, made: Machine, loop: asyncio.AbstractEventLoop, folder: Path) -> None:
        self._machine = made
        self._loop = loop
        self.folder = folder

    # How to reach it

    @property
    def url(self) -> str:
        return self._machine.server.url

    @property
    def ca_file(self) -> Path:
        return self._machine.certificates.ca_file

    def kubeconfig(self, *, namespace: str = "default", user: User = ADMIN) -> Path:
        """Write a kubeconfig for a user (the administrator, if none is named)."""
        token = self._do(lambda: self._machine.access.token_of(user))
        path = self.folder / f"kubeconfig-{user.name.replace(':', '-')}-{namespace}"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": self.url, "certificate-authority": str(self.ca_file)}}],
            "users": [{"name": user.name, "user": {"token": token}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": user.name, "namespace": namespace}}],
        }
        path.write_text(yaml.safe_dump(content))
        return path

    def service_account_kubeconfig(self, namespace: str, name: str) -> Path:
        """A kubeconfig with the rights of a service account: what its roles say and no more."""
        self._do(lambda: self._machine.store.get(SERVICE_ACCOUNTS, namespace, name))
        return self.kubeconfig(namespace=namespace, user=service_account(namespace, name))

    # What is there

    def objects(self, resource: Resource = PODS, namespace: str = "") -> list[Object]:
        """What the store has, without a request."""
        return self._do(lambda: self._machine.store.all(resource, namespace))

    def everything(self) -> list[tuple[str, Object]]:
        """(kind, object) of all that is stored."""
        return self._do(lambda: [(resource.kind, thing) for resource, thing in self._machine.store.everything()])

    @property
    def counts(self) -> Counter[tuple[str, str]]:
        """(verb, resource) -> requests so far."""
        return self._do(lambda: Counter(self._machine.front.counts))

    @property
    def requests(self) -> list[Request]:
        return self._do(lambda: list(self._machine.front.requests))

    def busiest_second(self) -> int:
        """The most requests that came within any one second."""
        times, first, most = [request.at for request in self.requests], 0, 0
        for last, at in enumerate(times):
            while at - times[first] > 1.0:
                first += 1
            most = max(most, last - first + 1)
        return most

    def wait(
        self,
        resource: Resource,
        name: str,
        condition: Callable[[Object], bool],
        *,
        namespace: str = "default",
        timeout_s: float = 30,
    ) -> Object:
        """Wait until an object is there and fulfils a condition."""

        async def waited() -> Object:
            async with asyncio.timeout(timeout_s):
                while True:
                    found = self._machine.store.find(resource, namespace, name)
                    if found is not None and condition(found):
                        return found
                    await self._machine.next_change()

        return self._await(waited())

    def wait_gone(self, resource: Resource, name: str, *, namespace: str = "default", timeout_s: float = 30) -> None:
        """Wait until there is no object of a name."""

        async def waited() -> None:
            async with asyncio.timeout(timeout_s):
                while self._machine.store.find(resource, namespace, name) is not None:
                    await self._machine.next_change()

        self._await(waited())

    # What tests want of it

    def deny(self, plural: str, message: str, *, name: str = "*", times: int | None = None) -> None:
        """An admission webhook that refuses objects."""
        self._do(lambda: self._machine.admission.denials.append(Denial(plural, message, name, left=times)))

    def fail(self, code: int, *, verb: str = "*", plural: str = "*", times: int | None = 1) -> None:
        """Answer requests with an error: 500, 503, 504, 409 ..."""

        def error() -> ApiError:
            return {503: errors.unavailable, 500: lambda: errors.internal("etcdserver: leader changed")}.get(
                code, lambda: ApiError(code, "", f"an error of a test: {code}")
            )()

        self._trouble(Trouble(error, verb, plural, times))

    def throttle(self, *, retry_after_s: int = 1, verb: str = "*", plural: str = "*", times: int | None = 1) -> None:
        """Answer with 429 and Retry-After."""
        self._trouble(Trouble(lambda: errors.too_many(retry_after_s), verb, plural, times))

    def no_more_trouble(self) -> None:
        """Take back what `deny`, `fail`, `throttle` and `break_exec` began."""

        def clear() -> None:
            self._machine.front.troubles.clear()
            self._machine.admission.denials.clear()
            self._machine.exec.faults.clear()

        self._do(clear)

    def set_latency(self, law: Callable[[str], float]) -> None:
        """Verb -> seconds that each request waits."""
        self._do(lambda: setattr(self._machine.front, "latency_s", law))

    def restart_api(self, *, down_s: float = 0.0) -> None:
        """Every connection dies; nothing answers for a while; then the same state at the same address."""
        self._await(self._machine.server.restart(down_s))

    def forget_history(self) -> None:
        """Compact: watches from an old version and half-read lists are told 410."""
        self._do(self._machine.forget_history)

    def break_exec(self, fault: str, *, times: int | None = 1, after_bytes: int = 0) -> None:
        """Let execs fail on their way: ``refuse``, ``drop`` (mid-output), ``silent`` (an empty error channel)."""
        self._do(lambda: self._machine.exec.break_next(fault, times, after_bytes))

    # What happens to pods and nodes

    def kill_pod(self, name: str, namespace: str = "default", *, exit_code: int = 137) -> None:
        """Kill every container's processes; the kubelet finds out as it does."""
        self._await(self._machine.kubelet.kill(namespace, name, exit_code))

    def oom(self, name: str, namespace: str = "default", container: str = "") -> None:
        """The kernel kills a container at its memory limit."""
        self._await(self._machine.kubelet.oom(namespace, name, container))

    def evict(self, name: str, namespace: str = "default", *, resource: str = "memory") -> None:
        """The kubelet evicts a pod because its node is low on something."""
        self._await(self._machine.kubelet.evict(namespace, name, resource))

    def lose_node(self, name: str, *, remove: bool = True) -> None:
        """A node is gone with all its processes. Its pods are deleted; with ``remove`` the node object too, and only
        then do the pods go: before that they stay ``Terminating``."""
        self._await(self._machine.lose_node(name, remove=remove))

    def add_node(self, node: NodeSpec) -> None:
        self._do(lambda: self._machine.add_node(node))

    def set_law(self, law: PodLaw) -> None:
        """How pods that start from now on fare."""
        self._do(lambda: setattr(self._machine.kubelet, "law", law))

    def _trouble(self, trouble: Trouble) -> None:
        self._do(lambda: self._machine.front.troubles.append(trouble))

    def _do(self, work: Callable[[], T]) -> T:
        async def done() -> T:
            return work()

        return self._await(done())

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


@contextmanager
def running(
    folder: Path,
    *,
    serve: Iterable[str] = ("agent-sandbox", "jobset", "lws"),
    nodes: Iterable[NodeSpec] = (NodeSpec("node-0"), NodeSpec("node-1"), NodeSpec("node-2")),
    images: Iterable[ImageRule] | None = None,
    law: PodLaw | None = None,
    exec_law: ExecLaw | None = None,
    history: int = 10_000,
    bookmark_s: float = 60.0,
) -> Iterator[FakeCluster]:
    """Run a cluster while the block runs; whatever runs in it dies with it.

    Args:
        folder: an empty folder for certificates, volumes and logs.
        serve: what the cluster serves beside Kubernetes itself, of `resources.CUSTOM`.
        images: image patterns -> what their containers see. None: containers are no processes, only a law.
        law: how long pods take, and what goes wrong with them.
        exec_law: what commands answer in containers without processes. None: nothing, with success.
        history: changes a kind that watches can go back.
        bookmark_s: seconds between bookmarks of a watch.
    """
    folder.mkdir(parents=True, exist_ok=True)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=_run_loop, args=(loop,), name="fake-kubernetes", daemon=True)
    thread.start()

    def call(work: Coroutine[Any, Any, T]) -> T:
        future: concurrent.futures.Future[T] = asyncio.run_coroutine_threadsafe(work, loop)
        return future.result()

    async def make() -> Machine:
        return machine.Machine(
            folder,
            serve=serve,
            nodes=nodes,
            images=images,
            law=law or PodLaw(),
            exec_law=exec_law,
            history=history,
            bookmark_s=bookmark_s,
        )

    try:
        made = call(make())
        try:
            call(made.start())
            yield FakeCluster(made, loop, folder)
        finally:
            call(made.stop())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        shutil.rmtree(folder / "run", ignore_errors=True)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
