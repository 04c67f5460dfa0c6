"""The HTTP side: paths to verbs, who asks, and the answers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import yaml
from aiohttp import web

from . import discovery, errors
from .access import Attempt, User
from .api import Api, DeleteOptions, Options
from .errors import ApiError, Object
from .resources import Target
from .watch import Watch, WatchOptions

TRUE = ("true", "1", "True")


@dataclass(frozen=True)
class Request:
    """One request that came in, for counting."""

    at: float
    verb: str
    resource: str
    user: str
    status: int


@dataclass
class Trouble:
    """Answers that are given instead of the work, ``left`` times; None is for ever."""

    error: Callable[[], ApiError]
    verb: str = "*"
    plural: str = "*"
    left: int | None = None

    def fits(self, verb: str, plural: str) -> bool:
        return self.verb in ("*", verb) and self.plural in ("*", plural)


Handler = Callable[[web.Request, User, Target], Awaitable[web.StreamResponse]]


@dataclass
class Front:
    """What stands before the API: latency, trouble, authentication, authorization, counting."""

    api: Api
    latency_s: Callable[[str], float] = lambda _: 0.0
    troubles: list[Trouble] = field(default_factory=list)
    bookmark_s: float = 60.0
    requests: deque[Request] = field(default_factory=lambda: deque(maxlen=200_000))
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    subresources: dict[tuple[str, str], Handler] = field(default_factory=dict)
    """(plural, subresource) -> what answers it, any method."""

    def app(self) -> web.Application:
        app = web.Application(client_max_size=8 * 2**20)
        app.router.add_route("*", "/{path:.*}", self.handle)
        return app

    async def handle(self, request: web.Request) -> web.StreamResponse:
        verb, plural, user_name, status = request.method.lower(), "", "", 500
        try:
            if (found := discovery.answer(self.api.catalog, request.path)) is not None:
                verb, status = "discover", 200
                return _json(found)
            user = self.api.access.user(request.headers.get("Authorization", ""))
            user_name = user.name
            target = self._target(request.path)
            verb = _verb(request, target)
            plural = "/".join(filter(None, (target.resource.plural, target.subresource)))
            if (delay := self.latency_s(verb)) > 0:
                await asyncio.sleep(delay)
            self._meet_trouble(verb, plural)
            self._authorize(user, verb, target, request)
            response = await self._answer(request, user, verb, target)
            status = response.status
            return response
        except ApiError as error:
            status = error.code
            return _json(error.status, status, error.headers)
        finally:
            self.counts[verb, plural] += 1
            self.requests.append(Request(time.monotonic(), verb, plural, user_name, status))

    def _target(self, path: str) -> Target:
        parts = [part for part in path.split("/") if part]
        if parts[:1] == ["api"] and len(parts) > 2:
            group, version, parts = "", parts[1], parts[2:]
        elif parts[:1] == ["apis"] and len(parts) > 3:
            group, version, parts = parts[1], parts[2], parts[3:]
        else:
            raise errors.no_such_path()
        namespace = ""
        if parts[0] == "namespaces" and len(parts) > 2 and parts[2] not in ("status", "finalize"):
            namespace, parts = parts[1], parts[2:]
        resource = self.api.catalog.at(group, version, parts[0])
        if resource is None or (namespace and not resource.namespaced):
            raise errors.no_such_path()
        name, subresource = (parts[1:2] or [""])[0], (parts[2:3] or [""])[0]
        if subresource and subresource not in resource.subresources:
            raise errors.no_such_path()
        return Target(resource, namespace, name, subresource, "/".join(parts[3:]))

    def _meet_trouble(self, verb: str, plural: str) -> None:
        for trouble in list(self.troubles):
            if trouble.fits(verb, plural):
                if trouble.left is not None:
                    trouble.left -= 1
                    if trouble.left <= 0:
                        self.troubles.remove(trouble)
                raise trouble.error()

    def _authorize(self, user: User, verb: str, target: Target, request: web.Request) -> None:
        if target.resource.verbs == ("create",):
            return  # anyone may ask what they may do
        r = target.resource
        attempt = Attempt(verb, r.group, r.plural, target.namespace, target.name, target.subresource)
        self.api.access.check(user, attempt, r)
        if target.subresource == "exec" and verb != "create":
            # Since 1.35 a WebSocket's GET needs the right to create as well.
            attempt = Attempt("create", r.group, r.plural, target.namespace, target.name, target.subresource)
            self.api.access.check(user, attempt, r)

    async def _answer(self, request: web.Request, user: User, verb: str, target: Target) -> web.StreamResponse:
        resource, namespace, name, query = target.resource, target.namespace, target.name, request.query
        special = self.subresources.get((resource.plural, target.subresource))
        if special is not None:
            return await special(request, user, target)
        if target.subresource and target.subresource not in ("status", "finalize", ""):
            raise errors.no_such_path()
        if verb not in resource.verbs:
            raise errors.not_allowed()
        if verb == "watch":
            return await self._watch(request, target)
        if verb == "list":
            return _json(
                self.api.list(
                    resource, namespace, labels=query.get("labelSelector", ""), fields=query.get("fieldSelector", ""),
                    limit=int(query.get("limit") or 0), token=query.get("continue", ""),
                )
            )  # fmt: skip
        if verb == "get":
            return _json(self.api.store.get(resource, namespace, name))
        body = await _body(request)
        if verb in ("delete", "deletecollection"):
            options = _delete_options(body if isinstance(body, dict) else {}, query)
            if verb == "delete":
                return _json(self.api.delete(resource, namespace, name, options))
            return _json(
                self.api.delete_all(
                    resource, namespace, options,
                    labels=query.get("labelSelector", ""), fields=query.get("fieldSelector", ""),
                )
            )  # fmt: skip
        options_ = Options(
            dry_run=query.get("dryRun") == "All",
            validation=query.get("fieldValidation") or "Warn",
            manager=query.get("fieldManager", ""),
            force=query.get("force") in TRUE,
        )
        status = 200
        if verb == "create":
            answer, status = self.api.create(user, target, body, options_), 201
        elif verb == "update":
            answer = self.api.replace(user, target, body, options_)
        else:
            there = self.api.store.find(resource, namespace, name)
            answer = self.api.patch(user, target, body, request.content_type, options_)
            status = 200 if there else 201
        headers = [("Warning", _warning(text)) for text in answer.warnings]
        return _json(answer.thing, status, headers)

    async def _watch(self, request: web.Request, target: Target) -> web.StreamResponse:
        query = request.query
        fields = query.get("fieldSelector", "")
        if target.name:
            fields = ",".join(filter(None, (fields, f"metadata.name={target.name}")))
        seconds = query.get("timeoutSeconds")
        options = WatchOptions(
            namespace=target.namespace,
            labels=query.get("labelSelector", ""),
            fields=fields,
            version=query.get("resourceVersion", ""),
            bookmarks=query.get("allowWatchBookmarks") in TRUE,
            timeout_s=float(seconds) if seconds else None,
            initial_events=query.get("sendInitialEvents") in TRUE,
        )
        watch = Watch(self.api.store, target.resource, options, self.bookmark_s)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        lines = watch.lines()
        try:
            async for line in lines:
                if line:
                    await response.write(line)
        except ConnectionError:
            return response
        finally:
            await lines.aclose()
        await response.write_eof()
        return response


def _verb(request: web.Request, target: Target) -> str:
    if request.method in ("GET", "HEAD"):
        if request.query.get("watch") in TRUE:
            return "watch"
        return "get" if target.name else "list"
    if request.method == "DELETE":
        return "delete" if target.name else "deletecollection"
    verbs = {"POST": "create", "PUT": "update", "PATCH": "patch"}
    if request.method not in verbs or (request.method == "POST" and target.name and not target.subresource):
        raise errors.not_allowed()
    return verbs[request.method]


async def _body(request: web.Request) -> Any:
    raw = await request.read()
    if not raw:
        return {}
    try:
        if "yaml" in request.content_type:
            return yaml.safe_load(raw)
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, yaml.YAMLError) as error:
        raise errors.bad_request(f"error decoding the body: {error}") from error


def _delete_options(body: Object, query: Any) -> DeleteOptions:
    grace = body.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
    needs = body.get("preconditions") or {}
    return DeleteOptions(
        grace_s=None if grace is None else int(grace),
        propagation=body.get("propagationPolicy") or query.get("propagationPolicy"),
        uid=needs.get("uid"),
        version=needs.get("resourceVersion"),
        dry_run="All" in (body.get("dryRun") or ()) or query.get("dryRun") == "All",
    )


def _warning(text: str) -> str:
    quoted = text.replace('"', '\\"')
    return f'299 - "{quoted}"'


def _json(thing: Object, status: int = 200, headers: Any = None) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(thing), status=status, headers=headers, content_type="application/json"
    )
