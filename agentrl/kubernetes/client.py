"""`KubernetesClient`: plain requests to the API server, bounded in rate, asked again where that can help.

Any request may be made twice: names are deterministic, so a create whose answer was lost meets its own object, which is
for the caller to recognise (`AlreadyExists`).
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from random import Random
from types import TracebackType
from typing import Any, TypeAlias

import aiohttp

from agentrl.clock import monotonic
from agentrl.kubernetes.connection import Connection
from agentrl.kubernetes.errors import KubernetesError, NotFound, Unauthorized, Unreachable, error_of
from agentrl.kubernetes.limits import RateLimit, retry_after_s
from agentrl.kubernetes.resources import Resource

Object: TypeAlias = dict[str, Any]
"""An object as the API serves it."""

REQUESTS_PER_S = 50.0
"""Of one client in the long run; the API server's own fairness (APF) begins to queue a single user at about as many."""
REQUEST_BURST = 100
REQUEST_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 10.0
RETRY_FOR_S = 30.0
"""How long a request is asked again before its error is told. Callers that can wait longer ask again themselves."""
PAGE_ITEMS = 500
MAX_CONNECTIONS = 4096
"""Watches and commands in pods hold one each."""
MAX_IN_FLIGHT = 64
"""Requests that are no watches or websockets; more would only open connections to wait in a server's line."""
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
FIELD_MANAGER = "agentrl"


@dataclass(frozen=True)
class Request:
    """One request, as it is asked and told."""

    method: str
    path: str
    _: KW_ONLY
    what: str
    """For messages, as in 'create pods in rl'."""
    counted: str
    """As what `KubernetesClient.requests` counts it."""
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    content_type: str = "application/json"


@dataclass(frozen=True)
class Listed:
    """A whole list, and from where a watch goes on."""

    items: list[Object]
    resource_version: str


class KubernetesClient:
    """One API server, one namespace unless a request names another. Use it in one event loop, and close it."""

    def __init__(
        self,
        connection: Connection,
        *,
        limit: RateLimit | None = None,
        entropy: Random | None = None,
        retry_for_s: float = RETRY_FOR_S,
    ) -> None:
        """`limit` may be shared by clients. `entropy` spreads retries."""
        self._connection = connection
        self._limit = limit or RateLimit(per_s=REQUESTS_PER_S, burst=REQUEST_BURST)
        self._entropy = entropy or Random()
        self._retry_for_s = retry_for_s
        self._session: aiohttp.ClientSession | None = None
        self._in_flight = asyncio.Semaphore(MAX_IN_FLIGHT)
        self.requests: Counter[tuple[str, str]] = Counter()
        """How many were made, by HTTP method and what they concerned (the plural, and the subresource)."""

    @property
    def namespace(self) -> str:
        return self._connection.namespace

    @property
    def host(self) -> str:
        """URL of the server, for messages."""
        return self._connection.host

    async def __aenter__(self) -> KubernetesClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Idempotent."""
        if self._session is not None:
            await self._session.close()

    # --- objects

    async def get(
        self, resource: Resource, name: str, *, namespace: str | None = None, subresource: str | None = None
    ) -> Object:
        """Raises NotFound."""
        return await self._object("GET", resource, name, namespace, subresource, verb="get")

    async def find(self, resource: Resource, name: str, *, namespace: str | None = None) -> Object | None:
        """As `get`; None where there is none."""
        try:
            return await self.get(resource, name, namespace=namespace)
        except NotFound:
            return None

    async def list_all(
        self,
        resource: Resource,
        *,
        labels: str | None = None,
        fields: str | None = None,
        namespace: str | None = None,
        everywhere: bool = False,
    ) -> Listed:
        """All objects that the selectors match, page by page; `everywhere`: in all namespaces.

        Raises Gone if the list changed too much between two pages.
        """
        path = resource.path(None if everywhere else namespace or self.namespace)
        query = _chosen(labels, fields) | {"limit": str(PAGE_ITEMS)}
        what = _what("list", resource, namespace or self.namespace)
        head = {"apiVersion": resource.api_version, "kind": resource.kind}
        items: list[Object] = []
        while True:
            page = await self.request(Request("GET", path, query=query, what=what, counted=resource.plural))
            items += [head | item for item in page["items"] or ()]  # which carry neither of the two
            meta = page["metadata"]
            if not meta.get("continue"):
                return Listed(items, meta.get("resourceVersion", ""))
            query["continue"] = meta["continue"]

    async def create(
        self,
        resource: Resource,
        body: Object,
        *,
        namespace: str | None = None,
        name: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> Object:
        """Make an object; unknown fields are refused. Raises AlreadyExists, also when a lost answer was a yes.

        `name` and `subresource`: a subresource of an object, such as its eviction.
        """
        query = {"fieldValidation": "Strict", "fieldManager": FIELD_MANAGER} | ({"dryRun": "All"} if dry_run else {})
        return await self._object("POST", resource, name, namespace, subresource, verb="create", query=query, body=body)

    async def replace(self, resource: Resource, body: Object, *, namespace: str | None = None) -> Object:
        """Raises Conflict if it has changed since the `resourceVersion` that the body carries."""
        name = body["metadata"]["name"]
        query = {"fieldValidation": "Strict", "fieldManager": FIELD_MANAGER}
        return await self._object("PUT", resource, name, namespace, verb="update", query=query, body=body)

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Any,
        *,
        kind: str = MERGE_PATCH,
        namespace: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> Object:
        """Change an object; `kind` is the patch's content type. With APPLY_PATCH it is made where there is none."""
        query = {"fieldManager": FIELD_MANAGER} | ({"dryRun": "All"} if dry_run else {})
        if kind == APPLY_PATCH:
            query |= {"force": "true", "fieldValidation": "Strict"}
        return await self._object(
            "PATCH", resource, name, namespace, subresource, verb="patch", query=query, body=body, content_type=kind
        )

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        grace_s: int | None = None,
        uid: str | None = None,
        propagation: str = "Background",
    ) -> bool:
        """False if there was none. With `uid` only that very object: another of its name raises Conflict."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        try:
            await self._object("DELETE", resource, name, namespace, verb="delete", body=options)
        except NotFound:
            return False
        return True

    async def delete_all(
        self, resource: Resource, *, labels: str, namespace: str | None = None, grace_s: int | None = None
    ) -> None:
        """Delete what a label selector matches, in one request."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        await self._object(
            "DELETE",
            resource,
            None,
            namespace,
            verb="deletecollection",
            query={"labelSelector": labels},
            body=options,
        )

    async def serves(self, resource: Resource) -> bool:
        """Whether the cluster knows this kind in this version."""
        path = f"/apis/{resource.api_version}" if resource.group else f"/api/{resource.version}"
        try:
            found = await self.request(
                Request("GET", path, what=f"ask for {resource.api_version}", counted="discovery")
            )
        except NotFound:
            return False
        return any(kind["name"] == resource.plural for kind in found["resources"])

    # --- requests

    async def request(self, asked: Request) -> Object:
        """One request, made again while that can help."""
        began, attempt = monotonic(), 0
        while True:
            try:
                timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)
                async with self._in_flight, self._answer(asked, timeout) as answer:
                    found: Object = json.loads(await answer.read())
                    return found
            except KubernetesError as error:
                pause = retry_after_s(error, attempt, self._entropy.random())
                if isinstance(error, Unauthorized) and attempt == 0:
                    await self._connection.renew()
                    pause = 0.0
                if pause is None or monotonic() + pause - began > self._retry_for_s:
                    raise
            attempt += 1
            await asyncio.sleep(pause)

    @asynccontextmanager
    async def stream(self, asked: Request, *, silence_s: float | None) -> AsyncIterator[AsyncIterator[bytes]]:
        """A body that comes line by line, such as a watch's or a log's. Not asked again.

        Raises Unreachable when it breaks off, or when nothing comes for `silence_s` (None: it may be silent for ever).
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=silence_s)
        async with self._answer(asked, timeout) as answer:
            yield _lines(answer, asked.what)

    async def websocket(
        self, asked: Request, *, query: list[tuple[str, str]], protocols: tuple[str, ...]
    ) -> aiohttp.ClientWebSocketResponse:
        """Open a websocket. Not asked again. Raises as a request does."""
        await self._wait_for_turn(asked)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                return await self._open_session().ws_connect(
                    self._connection.host + asked.path,
                    params=query,
                    protocols=protocols,
                    headers=await self._headers(),
                    proxy=self._connection.proxy,
                    server_hostname=self._connection.server_hostname,
                    max_msg_size=0,
                )
        except aiohttp.WSServerHandshakeError as error:
            if error.status in (401, 403, 404):
                await self.request(asked)  # a refused handshake loses its reason: plainly asked, the server says it
            raise error_of(error.status, error.message.encode(), what=asked.what, headers=error.headers) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unreachable(f"{asked.what}: {self.host}: {error or type(error).__name__}") from error

    async def _object(
        self,
        method: str,
        resource: Resource,
        name: str | None,
        namespace: str | None,
        subresource: str | None = None,
        *,
        verb: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Object:
        where = namespace or self.namespace
        return await self.request(
            Request(
                method,
                resource.path(where, name, subresource),
                what=_what(verb, resource, where, name, subresource),
                counted=_plural(resource, subresource),
                query=query or {},
                body=body,
                content_type=content_type,
            )
        )

    @asynccontextmanager
    async def _answer(self, asked: Request, timeout: aiohttp.ClientTimeout) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer of success. Raises KubernetesError otherwise."""
        await self._wait_for_turn(asked)
        headers = await self._headers() | {"Accept": "application/json"}
        if asked.body is not None:
            headers["Content-Type"] = asked.content_type
        try:
            async with self._open_session().request(
                asked.method,
                self._connection.host + asked.path,
                params=asked.query,
                data=None if asked.body is None else json.dumps(asked.body).encode(),
                headers=headers,
                timeout=timeout,
                proxy=self._connection.proxy,
                server_hostname=self._connection.server_hostname,
            ) as answer:
                if answer.status >= 300:
                    raise error_of(answer.status, await answer.read(), what=asked.what, headers=answer.headers)
                yield answer
        except KubernetesError:
            raise
        except (aiohttp.ClientError, OSError, TimeoutError, json.JSONDecodeError) as error:
            raise Unreachable(f"{asked.what}: {self.host}: {error or type(error).__name__}") from error

    async def _wait_for_turn(self, asked: Request) -> None:
        delay = self._limit.take(monotonic())
        if delay > 0:
            await asyncio.sleep(delay)
        self.requests[asked.method, asked.counted] += 1

    async def _headers(self) -> dict[str, str]:
        authorization = await self._connection.authorization()
        return {"User-Agent": FIELD_MANAGER} | ({"Authorization": authorization} if authorization else {})

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self._connection.ssl, limit=MAX_CONNECTIONS),
                read_bufsize=1 << 21,  # an event is a line, and may be long
            )
        return self._session


async def _lines(answer: aiohttp.ClientResponse, what: str) -> AsyncIterator[bytes]:
    try:
        async for line in answer.content:
            yield line
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:  # ValueError: a line that is too long
        raise Unreachable(f"{what}: {error or type(error).__name__}") from error


def _chosen(labels: str | None, fields: str | None) -> dict[str, str]:
    return {key: value for key, value in (("labelSelector", labels), ("fieldSelector", fields)) if value is not None}


def _what(
    verb: str, resource: Resource, namespace: str, name: str | None = None, subresource: str | None = None
) -> str:
    """What was asked, for messages."""
    plural = _plural(resource, subresource)
    whole = f"{verb} {plural}" if name is None else f"{verb} {plural} {name}"
    return f"{whole} in {namespace}" if resource.namespaced else whole


def _plural(resource: Resource, subresource: str | None) -> str:
    return resource.plural if subresource is None else f"{resource.plural}/{subresource}"
