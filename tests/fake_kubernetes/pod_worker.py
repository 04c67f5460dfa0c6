"""One pod on its node: from its volumes to its end. Writes the status, the events and the logs of its containers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from . import pod_status, probes
from .environment import NotConfigured, variables
from .errors import Object, new_uid
from .law import draw
from .pod_status import ContainerState, PodState, ended
from .resources import CONFIG_MAPS, NODES, PODS, SECRETS
from .runtime import CannotStart, Container, ContainerPlan, Disk
from .store import now_text
from .volumes import Volumes

if TYPE_CHECKING:
    from .kubelet import Kubelet

LONGEST_BACKOFF_S = 300.0


class PodWorker:
    """Runs a pod. Its task ends when the pod is over and gone, or was taken away."""

    def __init__(self, kubelet: Kubelet, pod: Object, volumes: Volumes, address: str) -> None:
        self.kubelet = kubelet
        self.pod = pod
        self.node: str = pod["spec"]["nodeName"]
        self.state = PodState(pod_ip=address)
        self.running: dict[str, Container] = {}
        self.logs: dict[str, Path] = {}
        self.oom_killed: set[str] = set()
        self._volumes = volumes
        self._folder = volumes.folder.parent
        self._stop = asyncio.Event()
        self._grace_s = 30.0
        self._silent = False
        self._gone = False
        self._stopping = False
        self.task = asyncio.ensure_future(self._run())

    # What the store tells

    def refresh(self, pod: Object) -> None:
        self.pod = pod
        if pod["metadata"].get("deletionTimestamp"):
            grace = float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
            if not self._stop.is_set():
                self._grace_s = grace
                self._stop.set()
            elif grace < self._grace_s:
                self._grace_s = grace
                self._kill_all()

    def vanish(self, *, silently: bool = False) -> None:
        """The pod is gone from the store, or its node from the world: nothing is written any more."""
        self._gone, self._silent = True, self._silent or silently
        self._kill_all()
        self._stop.set()

    async def end(self, reason: str, message: str, disruption: tuple[str, str] | None = None) -> None:
        """The kubelet ends the pod itself: evicted, deadline exceeded."""
        self.state.failed, self.state.disruption = (reason, message), disruption
        self._grace_s = min(self._grace_s, float(self.pod["spec"].get("terminationGracePeriodSeconds", 30)))
        self._stop.set()

    def _kill_all(self) -> None:
        for container in self.running.values():
            container.kill()

    # The life of a pod

    async def _run(self) -> None:
        try:
            life = asyncio.ensure_future(self._live())
            stopped = asyncio.ensure_future(self._stop.wait())
            deadline = self.pod["spec"].get("activeDeadlineSeconds")
            await asyncio.wait({life, stopped}, timeout=deadline, return_when=asyncio.FIRST_COMPLETED)
            if not life.done() and not stopped.done():
                message = "Pod was active on the node longer than the specified deadline"
                self._say("Normal", "DeadlineExceeded", message)
                await self.end("DeadlineExceeded", message)
            if self._stop.is_set():
                await self._halt(life)
            await life
            if not self._gone:
                await self._stop.wait()  # over, but still an object
            if not self._gone and not self.pod["metadata"].get("deletionTimestamp"):
                await self._until_deleted()
        finally:
            stopped.cancel()
            self._volumes.remove()
            self.kubelet.forget(self.pod["metadata"]["uid"])
        if not self._gone:
            self.kubelet.store.remove(PODS, self.pod["metadata"]["namespace"], self.pod["metadata"]["name"])

    async def _until_deleted(self) -> None:
        self._stop.clear()
        while not self._gone and not self.pod["metadata"].get("deletionTimestamp"):
            await self._stop.wait()
            self._stop.clear()

    async def _live(self) -> None:
        spec = self.pod["spec"]
        self.state.start_time = now_text()
        node = self.kubelet.store.find(NODES, "", self.node)
        addresses = (node or {}).get("status", {}).get("addresses") or [{"address": "127.0.0.1"}]
        self.state.host_ip = addresses[0]["address"]
        self.state.init = [
            ContainerState(one["name"], one["image"], ("PodInitializing", ""))
            for one in spec.get("initContainers") or []
        ]
        self.state.main = [ContainerState(one["name"], one["image"]) for one in spec["containers"]]
        if self.state.init:
            for one in self.state.main:
                one.waiting = ("PodInitializing", "")
        self.state.initialized = not self.state.init
        self.publish()
        await self._volumes_ready()
        self.state.sandbox_up = True
        async with asyncio.TaskGroup() as group:
            if await self._initialize(group):
                for spec_, state in zip(spec["containers"], self.state.main, strict=True):
                    group.create_task(self._container(spec_, state, spec.get("restartPolicy", "Always")))

    async def _volumes_ready(self) -> None:
        while not self._stop.is_set():
            try:
                self._volumes.prepare(self.pod)
                return
            except NotConfigured as error:
                self._say("Warning", "FailedMount", str(error))
                await self._pause(min(self.kubelet.law.backoff_s, 1.0))

    async def _initialize(self, group: asyncio.TaskGroup) -> bool:
        """Run the init containers, one after the other; those that always restart stay beside the rest."""
        policy = self.pod["spec"].get("restartPolicy", "Always")
        for spec, state in zip(self.pod["spec"].get("initContainers") or [], self.state.init, strict=True):
            if spec.get("restartPolicy") == "Always":
                group.create_task(self._container(spec, state, "Always"))
                while not state.started and not self._stop.is_set():  # noqa: ASYNC110 (its own task says so)
                    await asyncio.sleep(0.01)
                continue
            await self._container(spec, state, "OnFailure" if policy == "Always" else policy)
            if self._stop.is_set() or not state.terminated or state.terminated["exitCode"] != 0:
                self.publish()
                return False
        self.state.initialized = True
        for one in self.state.main:
            one.waiting = ("ContainerCreating", "")
        self.publish()
        return True

    async def _container(self, spec: Object, state: ContainerState, policy: str) -> None:
        """Start a container again and again, as its policy says."""
        backoff_s = self.kubelet.law.backoff_s
        while not self._stop.is_set():
            container = await self._start(spec, state)
            if container is None:
                code = state.terminated["exitCode"] if state.terminated else None
            else:
                code = await self._watch(spec, state, container)
            if code is None or self._stop.is_set() or policy == "Never" or (policy == "OnFailure" and code == 0):
                return
            state.last, state.terminated = state.terminated, None
            state.restarts += 1
            said = f"back-off {max(1, int(backoff_s))}s restarting failed container={state.name} pod={self._full_name}"
            state.waiting = ("CrashLoopBackOff", said)
            if state.restarts > 1:
                self.publish()
                self._say(
                    "Warning",
                    "BackOff",
                    f"Back-off restarting failed container {state.name} in pod {self._full_name}",
                    state,
                )
                await self._pause(backoff_s)
                backoff_s = min(2 * backoff_s, LONGEST_BACKOFF_S)

    async def _start(self, spec: Object, state: ContainerState) -> Container | None:
        """Pull, configure, start. None where it did not start (and the state says why)."""
        if not await self._pull(spec, state):
            return None
        law = self.kubelet.law
        await self._pause(draw(law.start_s, self.kubelet.chance))
        while not self._stop.is_set():
            try:
                plan = self._plan(spec, state)
            except NotConfigured as error:
                state.waiting = ("CreateContainerConfigError", str(error))
                self.publish()
                self._say("Warning", "Failed", f"Error: {error}", state)
                await self._pause(min(law.backoff_s, 1.0))
                continue
            break
        if self._stop.is_set():
            return None
        state.container_id = "containerd://" + (new_uid() + new_uid()).replace("-", "")
        self._say("Normal", "Created", f"Created container: {state.name}", state)
        try:
            container = await self.kubelet.runtime.start(plan)
        except CannotStart as error:
            message = (
                "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create "
                f"failed: {error}"
            )
            state.waiting = None
            state.terminated = ended(128, "", state.container_id, reason="StartError", message=message)
            self._say("Warning", "Failed", f"Error: {message}", state)
            self.publish()
            return None
        self.running[state.name] = container
        if self._gone or (self._stop.is_set() and self._stopping):
            container.kill()
        state.waiting, state.running_since, state.image_id = (
            None,
            now_text(),
            f"docker.io/{state.image}@sha256:{'0' * 64}",
        )
        self._say("Normal", "Started", f"Started container {state.name}", state)
        state.started = "startupProbe" not in spec
        state.ready = state.started and "readinessProbe" not in spec
        self.publish()
        return container

    async def _pull(self, spec: Object, state: ContainerState) -> bool:
        law, image = self.kubelet.law, state.image
        backoff_s = law.backoff_s
        policy = spec.get("imagePullPolicy")
        while law.image_is_missing(image):
            if self._stop.is_set():
                return False
            if policy == "Never":
                state.waiting = (
                    "ErrImageNeverPull",
                    f'Container image "{image}" is not present with pull policy of Never',
                )
            else:
                self._say("Normal", "Pulling", f'Pulling image "{image}"', state)
                reference = image if "/" in image else f"library/{image}"
                why = (
                    f'failed to pull and unpack image "docker.io/{reference}": failed to resolve reference '
                    f'"docker.io/{reference}": docker.io/{reference}: not found'
                )
                said = f"rpc error: code = NotFound desc = {why}"
                self._say("Warning", "Failed", f'Failed to pull image "{image}": {said}', state)
                self._say("Warning", "Failed", "Error: ErrImagePull", state)
                state.waiting = ("ErrImagePull", said)
                self.publish()
                await self._pause(min(law.backoff_s / 10, 0.2))
                state.waiting = ("ImagePullBackOff", f'Back-off pulling image "{image}": ErrImagePull: {said}')
                self._say("Normal", "BackOff", f'Back-off pulling image "{image}"', state)
                self._say("Warning", "Failed", "Error: ImagePullBackOff", state)
            self.publish()
            await self._pause(backoff_s)
            backoff_s = min(2 * backoff_s, LONGEST_BACKOFF_S)
        seconds = self.kubelet.pull_s(self.node, image)
        if seconds > 0:
            self._say("Normal", "Pulling", f'Pulling image "{image}"', state)
            await self._pause(seconds)
            took = f"{seconds:.3f}s ({seconds:.3f}s including waiting)"
            self._say(
                "Normal", "Pulled", f'Successfully pulled image "{image}" in {took}. Image size: 52428800 bytes.', state
            )
        else:
            self._say("Normal", "Pulled", f'Container image "{image}" already present on machine', state)
        return not self._stop.is_set()

    def _plan(self, spec: Object, state: ContainerState) -> ContainerPlan:
        self.pod = {**self.pod, "status": pod_status.status(self.pod, self.state)}
        namespace = self.pod["metadata"]["namespace"]
        kinds = {"ConfigMap": CONFIG_MAPS, "Secret": SECRETS}
        env = variables(
            self.pod,
            spec,
            lambda kind, name: self.kubelet.store.find(kinds[kind], namespace, name),
            self.kubelet.base_env(),
        )
        disk = self._disk(spec, state) if self.kubelet.runtime.has_processes else None
        return ContainerPlan(self.pod, spec, env, disk)

    def _disk(self, spec: Object, state: ContainerState) -> Disk:
        folder = self._folder / "containers" / spec["name"]
        folder.mkdir(parents=True, exist_ok=True)
        self.logs[spec["name"]] = folder / f"{state.restarts}.log"
        termination_log = folder / f"{state.restarts}.termination"
        termination_log.touch()
        termination_log.chmod(0o666)
        return Disk(self._volumes.mounts(spec), self.logs[spec["name"]], termination_log, self.kubelet.hosts(self.pod))

    async def _watch(self, spec: Object, state: ContainerState, container: Container) -> int:
        """Wait for a container's end, and probe it meanwhile."""
        probing = asyncio.ensure_future(probes.watch(self, spec, state, container))
        try:
            code = await container.wait()
        finally:
            probing.cancel()
        self.running.pop(state.name, None)
        reason, message = "", self._last_words(spec, state)
        if state.name in self.oom_killed:
            self.oom_killed.discard(state.name)
            reason, code = "OOMKilled", 137
        state.terminated = ended(code, state.running_since, state.container_id, reason=reason, message=message)
        state.running_since, state.ready, state.started = "", False, False
        self.publish()
        return code

    def _last_words(self, spec: Object, state: ContainerState) -> str:
        """What a container wrote into its termination log."""
        path = self._folder / "containers" / spec["name"] / f"{state.restarts}.termination"
        return path.read_text("utf-8", "replace")[:4096] if self.kubelet.runtime.has_processes else ""

    # The end

    async def _halt(self, life: asyncio.Future[None]) -> None:
        """Ask the containers to end, then make them."""
        self._stopping = True
        specs = {one["name"]: one for one in self.pod["spec"]["containers"]}
        if not self._gone:
            for name, container in list(self.running.items()):
                self._say("Normal", "Killing", f"Stopping container {name}", self._state_of(name))
                await self._before_stop(specs.get(name, {}), container)
                container.terminate()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while not life.done() and not self._gone:
            left = begun + self._grace_s - loop.time()
            if left <= 0:
                break
            await asyncio.wait({life}, timeout=min(left, 0.1))
        while not life.done():
            self._kill_all()
            await asyncio.wait({life}, timeout=0.1)
        self.publish()

    async def _before_stop(self, spec: Object, container: Container) -> None:
        hook = ((spec.get("lifecycle") or {}).get("preStop") or {}).get("exec")
        if hook:
            try:
                async with asyncio.timeout(self._grace_s):
                    await probes.run(container, hook["command"])
            except (TimeoutError, CannotStart) as error:
                self._say("Warning", "FailedPreStopHook", f"PreStopHook failed: {error}")

    # What it writes

    def publish(self) -> None:
        """Write the status, if it differs from the one that is there."""
        if self._gone or self._silent:
            return
        meta = self.pod["metadata"]
        made = pod_status.status

        def write(pod: Object) -> None:
            if pod["metadata"]["uid"] == meta["uid"]:
                pod["status"] = made(pod, self.state)

        self.kubelet.store.change(PODS, meta["namespace"], meta["name"], write)

    def _say(self, type_: str, reason: str, message: str, state: ContainerState | None = None) -> None:
        if self._gone:
            return
        kind = "initContainers" if state in self.state.init else "containers"
        field = f"spec.{kind}{{{state.name}}}" if state else ""
        self.kubelet.recorder.say(self.pod, type_, reason, message, host=self.node, field=field)

    say = _say

    def _state_of(self, name: str) -> ContainerState | None:
        return next((one for one in (*self.state.main, *self.state.init) if one.name == name), None)

    @property
    def _full_name(self) -> str:
        meta = self.pod["metadata"]
        return f"{meta['name']}_{meta['namespace']}({meta['uid']})"

    async def _pause(self, seconds: float) -> None:
        """Wait, but not longer than the pod."""
        if seconds > 0:
            try:
                async with asyncio.timeout(seconds):
                    await self._stop.wait()
            except TimeoutError:
                return
