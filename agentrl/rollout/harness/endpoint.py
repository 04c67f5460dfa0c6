"""The run's OpenAI-compatible endpoint: `/v1/chat/completions` and `/v1/models`, and `/exec` for commands.

One HTTP server on loopback for all episodes; the first part of a path is a secret of one of them. An answer may take as
long as the trainer needs, so a client that waits is sent white space, which neither JSON nor SSE minds.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

from aiohttp import web

from agentrl.clock import wall
from agentrl.rollout.harness.protocol import Refused, chunks, completion, models, problem, read_request
from agentrl.rollout.harness.session import Session, SessionOver

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 15.0
"""Between two signs of life to a client that waits; common clients give up after minutes without any."""
_MAX_BODY_BYTES = 64 << 20
_OVER = "the episode is over"


class Endpoint:
    """Serves until closed."""

    def __init__(self, *, model: str, tool_role: str, keep_alive_s: float = KEEP_ALIVE_S) -> None:
        """`model`: the name that it answers to. `tool_role`: the chat template's role for what tools answered."""
        self._model = model
        self._tool_role = tool_role
        self._keep_alive_s = keep_alive_s
        self._sessions: dict[str, Session] = {}
        self._ignored: set[str] = set()
        self._num = 0
        self._runner: web.AppRunner | None = None
        self._url = ""

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_post("/{token}/v1/chat/completions", self._complete)
        app.router.add_get("/{token}/v1/models", self._models)
        app.router.add_post("/{token}/exec", self._exec)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        bound_host, bound_port = self._runner.addresses[0][:2]
        self._url = f"http://{bound_host}:{bound_port}"

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def open(self, session: Session) -> str:
        """From now on the session is served; returns its address, to which `/v1` or `/exec` is added."""
        self._sessions[session.token] = session
        return f"{self._url}/{session.token}"

    def forget(self, session: Session) -> None:
        del self._sessions[session.token]

    # --- requests

    async def _models(self, request: web.Request) -> web.Response:
        return _error("unknown episode", 401) if self._of(request) is None else web.json_response(models(self._model))

    async def _exec(self, request: web.Request) -> web.Response:
        session = self._of(request)
        if session is None:
            return _error("unknown episode", 401)
        body = await _json(request)
        command = body.get("command") if isinstance(body, dict) else None
        timeout_s = body.get("timeout_s") if isinstance(body, dict) else None
        if not isinstance(command, str) or not (timeout_s is None or isinstance(timeout_s, int | float)):
            return _error('the body must be {"command": TEXT, "timeout_s": SECONDS or null}', 400)
        running = asyncio.ensure_future(session.exec(command, timeout_s))
        try:
            await asyncio.wait({running})
            result = running.result()
        except (SessionOver, asyncio.CancelledError):
            running.cancel()
            return _error(_OVER, 403)
        return web.json_response(
            {
                "exit_code": result.exit_code,
                "signal": result.signal,
                "stdout": result.stdout.decode("utf-8", errors="replace"),
                "stderr": result.stderr.decode("utf-8", errors="replace"),
                "timed_out": result.timed_out,
                "truncated": result.truncated,
            }
        )

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        session = self._of(request)
        if session is None:
            return _error("unknown episode", 401)
        try:
            asked = read_request(await _json(request), model=self._model, tool_role=self._tool_role)
        except Refused as error:
            session.refused(str(error))
            return _error(str(error), error.status)
        self._tell_ignored(asked.ignored)
        running = asyncio.ensure_future(session.ask(asked, lambda: _gone(request)))
        response: web.StreamResponse | None = None
        try:
            while not (await asyncio.wait({running}, timeout=self._keep_alive_s))[0]:
                response = response or await _begin(request, stream=asked.stream)
                await response.write(b": waiting\n\n" if asked.stream else b" ")
            answer = running.result()
        except Refused as error:
            session.refused(str(error))
            return await _finish(response, problem(str(error), error.status), error.status)
        except (SessionOver, asyncio.CancelledError, ConnectionError):
            running.cancel()
            return await _finish(response, problem(_OVER, 403), 403)
        self._num += 1
        about: dict[str, Any] = {"id_": f"chatcmpl-{self._num:06d}", "model": self._model, "created": int(wall())}
        if not asked.stream:
            return await _finish(response, completion(answer, **about), 200)
        response = response or await _begin(request, stream=True)
        for chunk in chunks(answer, with_usage=asked.with_usage, **about):
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    def _of(self, request: web.Request) -> Session | None:
        return self._sessions.get(request.match_info["token"])

    def _tell_ignored(self, names: frozenset[str]) -> None:
        if new := names - self._ignored:
            self._ignored |= new
            log.warning("the harness asks for %s: how tokens are sampled is the run's decision", ", ".join(sorted(new)))


async def _json(request: web.Request) -> Any:
    try:
        return json.loads(await request.read())
    except ValueError:
        return None


def _gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


def _error(message: str, status: int) -> web.Response:
    return web.json_response(problem(message, status), status=status)


async def _begin(request: web.Request, *, stream: bool) -> web.StreamResponse:
    """The head of an answer that is still waited for."""
    response = web.StreamResponse()
    response.content_type = "text/event-stream" if stream else "application/json"
    await response.prepare(request)
    return response


async def _finish(response: web.StreamResponse | None, body: dict[str, Any], status: int) -> web.StreamResponse:
    """The body, behind a head that may have been sent already."""
    if response is None:
        return web.json_response(body, status=status)
    if not response.prepared or response.content_type == "application/json":
        await response.write(json.dumps(body).encode())
    else:
        await response.write(f"data: {json.dumps(body)}\n\n".encode())
    await response.write_eof()
    return response
