"""Services: a forwarder behind each cluster address, and the names of services and pods in every pod's hosts file.

There is no name server: names are written into files that pods see as ``/etc/hosts``, anew at every change.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

from ..errors import Object
from ..events import Recorder
from ..resources import PODS, SERVICES
from ..selectors import of_spec
from ..store import Change, Store
from .base import is_over, is_ready

Address = tuple[str, int]


class Services:
    """What kube-proxy and the name server do."""

    def __init__(self, store: Store, recorder: Recorder, folder: Path, *, forwards: bool) -> None:
        """``forwards``: whether there are processes that could be reached, or that read names."""
        self._recorder = recorder
        self._forwards = forwards
        self._store = store
        self._folder = folder
        self._due = False
        self._closed = False
        self._listeners: dict[Address, asyncio.Server] = {}
        self._backends: dict[Address, list[Address]] = {}
        self._turn = itertools.count()
        self._work: asyncio.Task[None] | None = None
        self._connections: set[asyncio.Task[None]] = set()

    def hosts(self, pod: Object) -> Path:
        """The folder with a pod's hosts file."""
        folder: Path = self._folder / pod["metadata"]["uid"]
        if not folder.exists():
            folder.mkdir(parents=True)
        self._write_hosts(pod)
        return folder

    def see(self, change: Change) -> None:
        if self._forwards and change.resource in (SERVICES, PODS) and not self._due and not self._closed:
            self._due = True
            asyncio.get_running_loop().call_soon(self._refresh)

    async def close(self) -> None:
        self._closed = True
        if self._work is not None:
            await self._work
        for listener in self._listeners.values():
            listener.close()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _refresh(self) -> None:
        self._due = False
        for pod in self._store.all(PODS):
            if (self._folder / pod["metadata"]["uid"]).exists():
                self._write_hosts(pod)
        self._backends = {}
        for service in self._store.all(SERVICES):
            address = service["spec"].get("clusterIP")
            if address in (None, "None"):
                continue
            pods = [pod for pod in self._pods_of(service) if is_ready(pod)]
            for port in service["spec"].get("ports") or []:
                targets = [
                    (pod["status"]["podIP"], number) for pod in pods if (number := _target(pod, port)) is not None
                ]
                self._backends[address, port["port"]] = targets
        if self._work is None or self._work.done():
            self._work = asyncio.ensure_future(self._listen())

    async def _listen(self) -> None:
        while not self._closed and set(self._backends) != set(self._listeners):
            for address in set(self._listeners) - set(self._backends):
                self._listeners.pop(address).close()
            for address in set(self._backends) - set(self._listeners):
                try:
                    self._listeners[address] = await asyncio.start_server(self._accept(address), *address)
                except OSError as error:  # a port that needs root, say
                    self._backends.pop(address, None)
                    self._say_unable(address, error)

    def _say_unable(self, address: Address, error: OSError) -> None:
        for service in self._store.all(SERVICES):
            if service["spec"].get("clusterIP") == address[0]:
                self._recorder.say(service, "Warning", "FailedToListen", str(error), component="kube-proxy")

    def _accept(self, address: Address) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._connections.add(task)
            try:
                backends = self._backends.get(address) or []
                if not backends:
                    writer.transport.abort()  # nobody is ready: connection refused, as nearly as can be
                    return
                await _join(reader, writer, backends[next(self._turn) % len(backends)])
            finally:
                self._connections.discard(task)

        return forward

    def _pods_of(self, service: Object) -> list[Object]:
        selector = service["spec"].get("selector")
        if not selector:
            return []
        matches = of_spec({"matchLabels": selector})
        pods = self._store.all(PODS, service["metadata"]["namespace"])
        return [pod for pod in pods if matches(pod) and not is_over(pod) and pod["status"].get("podIP")]

    def _write_hosts(self, pod: Object) -> None:
        meta = pod["metadata"]
        lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
        lines.append("127.0.0.1 kubernetes.default.svc.cluster.local kubernetes.default.svc kubernetes.default")
        if pod["status"].get("podIP"):
            lines.append(f"{pod['status']['podIP']} {pod['spec'].get('hostname') or meta['name']}")
        for service in self._store.all(SERVICES):
            lines += self._names(service, meta["namespace"])
        path = self._folder / meta["uid"] / "hosts"
        text = "\n".join(lines) + "\n"
        if not path.exists() or path.read_text() != text:
            fresh = path.with_suffix(".new")
            fresh.write_text(text)
            fresh.rename(path)

    def _names(self, service: Object, namespace: str) -> list[str]:
        name, own = service["metadata"]["name"], service["metadata"]["namespace"]
        suffixes = [f"{name}.{own}.svc.cluster.local", f"{name}.{own}.svc", f"{name}.{own}"]
        if own == namespace:
            suffixes.append(name)
        address = service["spec"].get("clusterIP")
        if address != "None":
            return [f"{address} {' '.join(suffixes)}"] if address else []
        lines = []
        early = bool(service["spec"].get("publishNotReadyAddresses"))
        for pod in self._pods_of(service):
            if early or is_ready(pod):
                names = list(suffixes)
                if pod["spec"].get("subdomain") == name and pod["spec"].get("hostname"):
                    names = [f"{pod['spec']['hostname']}.{suffix}" for suffix in suffixes] + names
                lines.append(f"{pod['status']['podIP']} {' '.join(names)}")
        return lines


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, backend: Address) -> None:
    """Carry bytes both ways until both sides have ended."""
    try:
        there, back = await asyncio.open_connection(*backend)
    except OSError:
        writer.transport.abort()
        return
    try:
        await asyncio.gather(_carry(reader, back), _carry(there, writer))
    except ConnectionError:
        pass
    finally:
        for end in (back, writer):
            end.close()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(64 * 1024):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def _target(pod: Object, port: Object) -> int | None:
    wanted = port.get("targetPort", port["port"])
    if isinstance(wanted, int):
        return wanted
    for container in pod["spec"]["containers"]:
        for one in container.get("ports") or []:
            if one.get("name") == wanted:
                return int(one["containerPort"])
    return None
