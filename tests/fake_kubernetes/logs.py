"""``pods/log``: what a container said, and what it says from now on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from aiohttp import web

from . import errors
from .access import User
from .exec import choose_container
from .http import TRUE
from .kubelet import Kubelet
from .resources import PODS, Target


@dataclass
class LogHandler:
    """Answers log requests."""

    kubelet: Kubelet

    async def __call__(self, request: web.Request, user: User, target: Target) -> web.StreamResponse:
        query = request.query
        pod = self.kubelet.store.get(PODS, target.namespace, target.name)
        container = choose_container(pod, query.get("container", ""))
        path = self._path(pod["metadata"]["uid"], container, previous=query.get("previous") in TRUE)
        if path is None and not self.kubelet.runtime.has_processes:
            return web.Response()
        if path is None:
            if query.get("previous") in TRUE:
                raise errors.bad_request(
                    f'previous terminated container "{container}" in pod "{target.name}" not found'
                )
            statuses = pod["status"].get("containerStatuses") or []
            waiting = [one["state"].get("waiting") or {} for one in statuses if one["name"] == container]
            reason = waiting[0].get("reason", "ContainerCreating") if waiting else "ContainerCreating"
            raise errors.bad_request(f'container "{container}" in pod "{target.name}" is waiting to start: {reason}')
        lines = _Lines(path, timestamps=query.get("timestamps") in TRUE, since=_since(query))
        tail = query.get("tailLines")
        first = list(lines.new())
        if tail is not None:
            first = first[-int(tail) :] if int(tail) else []
        limit = int(query.get("limitBytes") or 0)
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        data = b"".join(first)
        await response.write(data[:limit] if limit else data)
        if query.get("follow") in TRUE:
            await self._follow(response, pod["metadata"]["uid"], container, path, lines)
        await response.write_eof()
        return response

    async def _follow(self, response: web.StreamResponse, uid: str, container: str, path: Path, lines: _Lines) -> None:
        """Send lines until this run of the container is over."""
        while True:
            worker = self.kubelet.workers.get(uid)
            over = worker is None or worker.logs.get(container) != path or container not in worker.running
            if data := b"".join(lines.new()):
                try:
                    await response.write(data)
                except ConnectionError:
                    return
            if over:
                return
            await asyncio.sleep(0.05)

    def _path(self, uid: str, container: str, *, previous: bool) -> Path | None:
        folder = self.kubelet.folder / "pods" / uid / "containers" / container
        runs = sorted(folder.glob("*.log"), key=lambda one: int(one.stem))
        if previous:
            return runs[-2] if len(runs) > 1 else None
        return runs[-1] if runs else None


class _Lines:
    """The lines of a log file that have not been read."""

    def __init__(self, path: Path, *, timestamps: bool, since: datetime | None) -> None:
        self._path = path
        self._timestamps = timestamps
        self._since = since
        self._read = 0

    def new(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._read += len(line)
                stamp, _, whole, text = line.split(b" ", 3)
                if self._since and datetime.fromisoformat(stamp[:26].decode() + "+00:00") < self._since:
                    continue
                text = text if whole == b"F" else text[:-1]
                yield stamp + b" " + text if self._timestamps else text


def _since(query: Mapping[str, str]) -> datetime | None:
    seconds = query.get("sinceSeconds")
    if seconds:
        return datetime.now(UTC) - timedelta(seconds=int(seconds))
    moment = query.get("sinceTime")
    return datetime.fromisoformat(moment.replace("Z", "+00:00")) if moment else None
