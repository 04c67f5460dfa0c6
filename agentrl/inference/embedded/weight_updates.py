"""Weights that come from the trainer itself: SGLang's update session, over a process group or shared memory.

What a session brings is collected and served as one at its end: until then the engine serves what it had. A session
that ends before it was told the version of what it brought is given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from aiohttp import web

from agentrl.inference.embedded.core import Update
from agentrl.inference.embedded.requests import (
    BadRequest,
    CheckBody,
    FromGroupBody,
    FromTensorsBody,
    GroupBody,
    GroupNameBody,
    VersionBody,
    decode,
)
from agentrl.inference.embedded.worker import Worker
from agentrl.transfer.group import GLOO, Group, empty, local_address, reach_store
from agentrl.transfer.handles import from_handles

log = logging.getLogger("agentrl.embedded")

_GROUP_TIMEOUT_S = 600.0
"""Of a group's life. A sender that dies is noticed at once; this is for one that hangs."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class _Session:
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    version: str | None = None
    flush: bool = False
    abort: bool = False


class WeightUpdates:
    """The handlers, and what they have collected. One update at a time, as in SGLang."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._groups: dict[str, Group] = {}
        self._session: _Session | None = None

    def routes(self) -> dict[str, Handler]:
        """Handlers of POST requests by their paths."""
        return {
            "/init_weights_update_group": self._join,
            "/destroy_weights_update_group": self._leave,
            "/begin_weight_update": self._begin,
            "/update_weights_from_distributed": self._from_group,
            "/update_weights_from_tensor": self._from_tensors,
            "/end_weight_update": self._end,
            "/update_weight_version": self._label,
            "/weights_checker": self._check,
        }

    async def _join(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), GroupBody)
        if body.backend != GLOO:
            raise BadRequest(f"backend {body.backend} is not served: only {GLOO} is")
        if body.group_name in self._groups:
            raise BadRequest(f"there is a group {body.group_name} already")

        def join() -> Group:
            store = reach_store(body.master_address, body.master_port, _GROUP_TIMEOUT_S)
            return Group(
                store,
                name=body.group_name,
                rank=body.rank_offset,
                size=body.world_size,
                backend=body.backend,
                address=local_address(body.master_address, body.master_port),
                timeout_s=_GROUP_TIMEOUT_S,
            )

        try:
            self._groups[body.group_name] = await asyncio.to_thread(join)
        except (RuntimeError, OSError) as error:
            raise BadRequest(f"cannot join {body.group_name}: {error}") from error
        return _ok()

    async def _leave(self, request: web.Request) -> web.Response:
        self._group(decode(await request.read(), GroupNameBody).group_name, forget=True).close()
        return _ok()

    async def _begin(self, request: web.Request) -> web.Response:
        if self._session is not None:
            raise BadRequest("a weight update is open already: end it first")
        self._session = _Session()
        return _ok()

    async def _from_group(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), FromGroupBody)
        session, group = self._open(), self._group(body.group_name)
        if not len(body.names) == len(body.dtypes) == len(body.shapes):
            raise BadRequest("names, dtypes and shapes differ in number")
        try:
            tensors = [empty(shape, dtype) for shape, dtype in zip(body.shapes, body.dtypes, strict=True)]
        except (ValueError, RuntimeError) as error:
            raise BadRequest(str(error)) from error

        def receive() -> None:
            for tensor in tensors:
                group.broadcast(tensor)

        try:
            await asyncio.to_thread(receive)
        except RuntimeError as error:
            raise BadRequest(f"the sender is gone: {error}") from error
        self._collect(session, dict(zip(body.names, tensors, strict=True)), body)
        return _ok()

    async def _from_tensors(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), FromTensorsBody)
        session = self._open()
        if len(body.serialized_named_tensors) != 1:
            raise BadRequest(f"payloads for {len(body.serialized_named_tensors)} ranks, and this is one")
        try:
            named = await asyncio.to_thread(from_handles, body.serialized_named_tensors[0])
        except ValueError as error:
            raise BadRequest(str(error)) from error
        # Copied: the sender is free to take its memory back after the answer.
        self._collect(session, {name: tensor.clone() for name, tensor in named}, body)
        return _ok()

    async def _end(self, request: web.Request) -> web.Response:
        session = self._open()
        self._session = None
        if session.version is None:
            log.warning("a weight update ended without a version: it is given up")
            return _ok()
        update = Update(session.tensors, session.version, session.flush)
        await self._worker.update(update, abort=session.abort)
        log.info("serving weight version %s, %d tensors sent", self._worker.stats.version, len(session.tensors))
        return _ok()

    async def _label(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), VersionBody)
        if body.abort_all_requests:
            await self._worker.abort("")
        await self._worker.label(body.new_version)
        return _ok()

    async def _check(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), CheckBody)
        if body.action != "checksum":
            raise BadRequest(f"action {body.action} is not served: only checksum is")
        return _ok(ranks=[{"checksums": await self._worker.digests()}])

    def _open(self) -> _Session:
        if self._session is None:
            raise BadRequest("no weight update is open: begin one first")
        return self._session

    def _group(self, name: str, *, forget: bool = False) -> Group:
        try:
            return self._groups.pop(name) if forget else self._groups[name]
        except KeyError:
            raise BadRequest(f"there is no group {name}") from None

    def _collect(
        self, session: _Session, tensors: dict[str, torch.Tensor], body: FromGroupBody | FromTensorsBody
    ) -> None:
        session.tensors |= tensors
        session.version = body.weight_version or session.version
        session.flush |= body.flush_cache
        session.abort |= body.abort_all_requests


def _ok(**more: Any) -> web.Response:
    content = {"success": True, "message": "", **more}
    return web.Response(body=msgspec.json.encode(content), content_type="application/json")
