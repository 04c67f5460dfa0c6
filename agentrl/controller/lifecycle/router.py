"""Keeps the router before the engines running, or follows one that somebody else runs."""

from __future__ import annotations

import asyncio

from agentrl.cluster.cluster import Cluster, Process, ProcessSpec
from agentrl.cluster.logs import log_tail
from agentrl.controller.fleet.routed import Routed
from agentrl.controller.lifecycle.run_directory import RunDirectory
from agentrl.errors import EngineError, ProcessFailed
from agentrl.inference.config import InferenceConfig
from agentrl.inference.router import SGLangRouter
from agentrl.inference.servers import RouterServer
from agentrl.observe.events import Observer, ProcessChanged

_POLL_S = 0.05


class RouterSupervisor:
    """One router. While there is none, requests wait and are sent again; engines go on with what they have."""

    role = "router"

    def __init__(self, inference: InferenceConfig, *, run: RunDirectory, cluster: Cluster, observer: Observer) -> None:
        self._inference = inference
        self._cluster = cluster
        self._observer = observer
        self._log = run.logs / f"{self.role}.log"

    async def keep(self, routed: Routed) -> None:
        """Until cancelled. Raises ProcessFailed after inference.max_restarts."""
        for restarts in range(self._inference.max_restarts + 1):
            self._say("starting", f"restart {restarts}" if restarts else "")
            routed.failed.clear()
            process, url = await self._start()
            router = SGLangRouter(url, request_timeout_s=self._inference.request_timeout_s)
            try:
                await self._until_ready(router, process)
                await routed.use(router)
                self._say("up")
                why = await self._until_lost(routed, process)
            except EngineError as error:
                why = str(error)
            finally:
                await routed.use(None)
                await router.close()
            if process is not None:
                await process.stop(0.0)
            self._say("down", why)
        raise ProcessFailed(f"router failed {restarts + 1} times: {why}", hint=f"its output is in {self._log}")

    async def _start(self) -> tuple[Process | None, str]:
        """The process, if it is ours, and its address."""
        if (url := self._inference.router_url) is not None:
            return None, url
        server = RouterServer(self._inference)
        spec = ProcessSpec(role=self.role, argv=server.argv, log=self._log)
        return await self._cluster.start(spec), server.url

    async def _until_ready(self, router: SGLangRouter, process: Process | None) -> None:
        exited = None if process is None else asyncio.create_task(process.wait())
        try:
            async with asyncio.timeout(self._inference.startup_timeout_s):
                while not await router.ready():
                    if exited is not None and exited.done():
                        raise EngineError(f"exited with {exited.result()} before it served: {log_tail(self._log)}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            tail = "" if process is None else f": {log_tail(self._log)}"
            raise EngineError(f"not ready in {self._inference.startup_timeout_s:g} s{tail}") from None
        finally:
            if exited is not None:
                exited.cancel()

    async def _until_lost(self, routed: Routed, process: Process | None) -> str:
        """Until the process ends, or the router does not obey."""
        failed = asyncio.create_task(routed.failed.wait())
        waits: list[asyncio.Task[object]] = [failed]
        if process is not None:
            waits.append(asyncio.create_task(process.wait()))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return "does not obey" if failed.done() else f"exited: {log_tail(self._log)}"
        finally:
            for wait in waits:
                wait.cancel()

    def _say(self, state: str, detail: str = "") -> None:
        self._observer.emit(ProcessChanged(role=self.role, state=state, detail=detail))
