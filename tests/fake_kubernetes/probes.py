"""Startup, readiness and liveness probes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp

from .errors import Object
from .law import draw
from .pod_status import ContainerState
from .runtime import CannotStart, Container

if TYPE_CHECKING:
    from .pod_worker import PodWorker


async def run(container: Container, command: list[str]) -> tuple[int, str]:
    """Execute a command in a container: its exit code and what it said."""
    process = await container.execute(command, stdin=False)
    out, err = await asyncio.gather(process.stdout.read(), process.stderr.read())
    return await process.wait(), (out + err).decode("utf-8", "replace")


async def watch(worker: PodWorker, spec: Object, state: ContainerState, container: Container) -> None:
    """Probe a container as long as it runs."""
    if not worker.kubelet.runtime.has_processes:
        await asyncio.sleep(draw(worker.kubelet.law.ready_s, worker.kubelet.chance))
        if not (state.ready and state.started):
            state.ready = state.started = True
            worker.publish()
        return
    if (startup := spec.get("startupProbe")) is not None:
        await _until_started(worker, spec, startup, state, container)
    async with asyncio.TaskGroup() as group:
        if (readiness := spec.get("readinessProbe")) is not None:
            group.create_task(_ready(worker, spec, readiness, state))
        if (liveness := spec.get("livenessProbe")) is not None:
            group.create_task(_alive(worker, spec, liveness, state, container))


async def _until_started(
    worker: PodWorker, spec: Object, probe: Object, state: ContainerState, container: Container
) -> None:
    failures = 0
    await asyncio.sleep(probe.get("initialDelaySeconds", 0))
    while (why := await _ask(worker, spec, probe)) is not None:
        failures += 1
        worker.say("Warning", "Unhealthy", f"Startup probe failed: {why}", state)
        if failures >= probe["failureThreshold"]:
            worker.say("Normal", "Killing", f"Container {state.name} failed startup probe, will be restarted", state)
            container.kill()
            return
        await asyncio.sleep(_period(worker, probe))
    state.started = True
    state.ready = "readinessProbe" not in spec
    worker.publish()


async def _ready(worker: PodWorker, spec: Object, probe: Object, state: ContainerState) -> None:
    await asyncio.sleep(probe.get("initialDelaySeconds", 0))
    good = bad = 0
    while True:
        why = await _ask(worker, spec, probe)
        good, bad = (good + 1, 0) if why is None else (0, bad + 1)
        if why is not None:
            worker.say("Warning", "Unhealthy", f"Readiness probe failed: {why}", state)
        ready = state.ready
        if good >= probe["successThreshold"]:
            ready = True
        elif bad >= probe["failureThreshold"]:
            ready = False
        if ready != state.ready:
            state.ready = ready
            worker.publish()
        await asyncio.sleep(_period(worker, probe))


async def _alive(worker: PodWorker, spec: Object, probe: Object, state: ContainerState, container: Container) -> None:
    await asyncio.sleep(probe.get("initialDelaySeconds", 0))
    bad = 0
    while bad < probe["failureThreshold"]:
        await asyncio.sleep(_period(worker, probe))
        why = await _ask(worker, spec, probe)
        bad = 0 if why is None else bad + 1
        if why is not None:
            worker.say("Warning", "Unhealthy", f"Liveness probe failed: {why}", state)
    worker.say("Normal", "Killing", f"Container {state.name} failed liveness probe, will be restarted", state)
    container.kill()


def _period(worker: PodWorker, probe: Object) -> float:
    return worker.kubelet.law.watch_interval_s or float(probe["periodSeconds"])


async def _ask(worker: PodWorker, spec: Object, probe: Object) -> str | None:
    """One probe: None, or why it failed."""
    timeout_s = float(probe["timeoutSeconds"])
    try:
        async with asyncio.timeout(timeout_s):
            if "exec" in probe:
                container = worker.running.get(spec["name"])
                if container is None:
                    return "container is not running"
                code, said = await run(container, probe["exec"]["command"])
                return None if code == 0 else said
            if "tcpSocket" in probe:
                where = probe["tcpSocket"]
                host = where.get("host") or worker.state.pod_ip
                _, writer = await asyncio.open_connection(host, _port(spec, where["port"]))
                writer.close()
                return None
            return await _get(worker, spec, probe["httpGet"])
    except TimeoutError:
        return f"timeout: command timed out after {timeout_s:g}s"
    except (OSError, CannotStart) as error:
        return str(error)


async def _get(worker: PodWorker, spec: Object, where: Object) -> str | None:
    host, port = where.get("host") or worker.state.pod_ip, _port(spec, where["port"])
    url = f"{where.get('scheme', 'HTTP').lower()}://{host}:{port}/{where.get('path', '/').lstrip('/')}"
    try:
        async with aiohttp.ClientSession() as session, session.get(url, ssl=False) as response:
            if 200 <= response.status < 400:
                return None
            return f"HTTP probe failed with statuscode: {response.status}"
    except aiohttp.ClientError as error:
        return f'Get "{url}": {error}'


def _port(spec: Object, port: int | str) -> int:
    """A port by number or by its name."""
    if isinstance(port, int):
        return port
    return next(int(one["containerPort"]) for one in spec.get("ports") or [] if one.get("name") == port)
