"""Keeps engine and trainer processes running: start, wait until they serve, restart when they die, at last give up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from agentrl.cluster.cluster import Cluster, Process, ProcessSpec
from agentrl.cluster.logs import log_tail
from agentrl.config.schema import JobConfig
from agentrl.controller.config import num_swing
from agentrl.controller.fleet.fleet import Fleet
from agentrl.controller.fleet.state import EngineState
from agentrl.controller.lifecycle.router import RouterSupervisor
from agentrl.controller.lifecycle.run_directory import RunDirectory
from agentrl.controller.trainer_desk import TrainerDesk
from agentrl.errors import EngineError, ProcessFailed
from agentrl.inference.client import SGLangClient
from agentrl.inference.config import EngineBackend, InferenceConfig, Router
from agentrl.inference.engine import Engine
from agentrl.inference.labels import weight_label
from agentrl.inference.servers import Listen, server_program
from agentrl.observe.events import Observer, ProcessChanged
from agentrl.trainer.job import ExitCode, ExitReport, TrainerJob

_POLL_S = 0.05
_ATTACH_POLL_S = 1.0
_MAX_DOUBTS = 3
"""Failures that one engine process may have and be found healthy after, before it is restarted all the same."""


class EngineSupervisor:
    """One engine process, restarted on the current weights whenever it dies or fails."""

    def __init__(
        self,
        index: int,
        config: JobConfig,
        *,
        run: RunDirectory,
        cluster: Cluster,
        observer: Observer,
    ) -> None:
        self.role = f"engine-{index}"
        self._inference = config.inference
        self._signed = config.inference.router is not Router.direct
        self._cluster = cluster
        self._observer = observer
        self._log = run.logs / f"{self.role}.log"
        place = cluster.place(self.role)
        sglang = config.inference.sglang
        self._server = server_program(
            config.inference,
            python=place.python,
            sglang_python=place.sglang_python or sglang.python,
            first_gpu=0 if place.own_gpus else index * sglang.gpus_per_engine,
            listen=Listen(host=place.host, port=place.port),
            seed=config.seed,
            swing=index < num_swing(config.schedule.swing, config.inference.num_engines),
            ready_file=run.work / f"{self.role}.ready.json",
        )
        self._failed = asyncio.Event()

    def report_failure(self) -> None:
        """The fleet lost faith in this engine."""
        self._failed.set()

    async def keep(self, fleet: Fleet) -> None:
        """Until cancelled. Raises ProcessFailed after inference.max_restarts."""
        for restarts in range(self._inference.max_restarts + 1):
            self._say("starting", f"restart {restarts}" if restarts else "")
            process = await self._start(fleet)
            try:
                engine = await self._connect(process)
                try:
                    await engine.check_api()
                    why = await self._serve(engine, fleet, process)
                finally:
                    fleet.dismiss(self.role)
                    await engine.close()
            except EngineError as error:
                why = str(error)
            await process.stop(0.0)
            self._say("down", why)
        raise ProcessFailed(f"{self.role} failed {restarts + 1} times: {why}", hint=f"its output is in {self._log}")

    async def _serve(self, engine: Engine, fleet: Fleet, process: Process) -> str:
        """In the fleet until the process ends, or fails too often. Returns why it must be restarted."""
        for _ in range(_MAX_DOUBTS):
            self._failed.clear()
            await fleet.admit(engine)
            self._say("up")
            if (why := await self._until_lost(process)) is not None:
                return why
            if not await engine.healthy():
                return "failed a request and is not healthy"
            self._say("starting", "failed a request but is healthy; admitted again")
        return f"failed requests {_MAX_DOUBTS} times"

    async def _start(self, fleet: Fleet) -> Process:
        await fleet.until_startable(self.role)
        weights = fleet.start_weights(self.role)
        label = weight_label(weights.stored, self.role if self._signed else None)
        command = self._server.command(weights.path, label)
        spec = ProcessSpec(role=self.role, argv=command.argv, env=command.env, log=self._log)
        return await self._cluster.start(spec)

    async def _connect(self, process: Process) -> SGLangClient:
        """Wait until the server serves. Raises EngineError with the end of its log if it never does."""
        exited = asyncio.create_task(process.wait())
        try:
            async with asyncio.timeout(self._inference.startup_timeout_s):
                while process.address is None or (url := await self._server.ready(process.address)) is None:
                    if exited.done():
                        raise EngineError(f"exited with {exited.result()} before it served: {log_tail(self._log)}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise EngineError(f"not ready in {self._inference.startup_timeout_s:g} s: {log_tail(self._log)}") from None
        finally:
            exited.cancel()
        return _client(self.role, url, self._inference)

    async def _until_lost(self, process: Process) -> str | None:
        """Until the process ends, which is said, or the fleet reports a failure: None."""
        exited = asyncio.create_task(process.wait())
        failed = asyncio.create_task(self._failed.wait())
        try:
            await asyncio.wait({exited, failed}, return_when=asyncio.FIRST_COMPLETED)
            return f"exited with {exited.result()}" if exited.done() else None
        finally:
            exited.cancel()
            failed.cancel()

    def _say(self, state: str, detail: str = "") -> None:
        self._observer.emit(ProcessChanged(role=self.role, state=state, detail=detail))


class AttachedEngine:
    """A server that somebody else runs: in the fleet while it is healthy, never started or stopped.

    Its weights are whatever it has until the fleet admits it: then it gets the run's.
    """

    def __init__(self, index: int, url: str, config: JobConfig, *, observer: Observer) -> None:
        self.role = f"engine-{index}"
        self._url = url
        self._inference = config.inference
        self._observer = observer
        self._failed = asyncio.Event()

    def report_failure(self) -> None:
        """The fleet lost faith in this engine."""
        self._failed.set()

    async def keep(self, fleet: Fleet) -> None:
        """Until cancelled. Raises ProcessFailed after it was away for inference.startup_timeout_s."""
        engine = _client(self.role, self._url, self._inference)
        try:
            while True:
                self._say("starting", self._url)
                await self._until_admitted(engine, fleet)
                self._say("up")
                self._say("down", await self._until_lost(engine, fleet))
                fleet.dismiss(self.role)
        finally:
            fleet.dismiss(self.role)
            await engine.close()

    async def _until_lost(self, engine: SGLangClient, fleet: Fleet) -> str:
        """Until the fleet reports a failure, or the server is not the one that was lent. Returns why it is lost.

        Nobody asks anything of a lent engine: whoever restarts it then gives it memory that the trainer has.
        """
        lent_with: int | None = None
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ATTACH_POLL_S):
                    await self._failed.wait()
                return "failed a request"
            if fleet.state(self.role) is not EngineState.LENT:
                lent_with = None
                continue
            try:
                version = await engine.version()
            except EngineError as error:
                return f"lost while it was lent: {error}"
            if lent_with is None:
                lent_with = fleet.version_of(self.role)
            if lent_with not in (None, version):
                return f"was restarted while it was lent: it serves version {version}, not {lent_with}"
            lent_with = version

    async def _until_admitted(self, engine: SGLangClient, fleet: Fleet) -> None:
        problem = "no answer to /health"
        try:
            async with asyncio.timeout(self._inference.startup_timeout_s):
                while True:
                    self._failed.clear()
                    try:
                        if await engine.healthy():
                            await engine.check_api()
                            return await fleet.admit(engine)
                    except EngineError as error:
                        problem = str(error)
                    await asyncio.sleep(_ATTACH_POLL_S)
        except TimeoutError:
            waited = f"not to be used for {self._inference.startup_timeout_s:g} s"
            raise ProcessFailed(f"{self.role} at {self._url} {waited}: {problem}") from None

    def _say(self, state: str, detail: str = "") -> None:
        self._observer.emit(ProcessChanged(role=self.role, state=state, detail=detail))


def _client(role: str, url: str, inference: InferenceConfig) -> SGLangClient:
    return SGLangClient(
        role,
        url,
        request_timeout_s=inference.request_timeout_s,
        signed=inference.router is not Router.direct,
        # The embedded engine has no graphs.
        tags=() if inference.backend is EngineBackend.embedded else inference.sglang.release,
    )


class EngineSupervisors:
    """All engines of a run, and the router before them."""

    def __init__(self, config: JobConfig, *, run: RunDirectory, cluster: Cluster, observer: Observer) -> None:
        engines: Iterable[EngineSupervisor | AttachedEngine]
        if config.inference.backend is EngineBackend.attached:
            urls = enumerate(config.inference.urls)
            engines = (AttachedEngine(index, url, config, observer=observer) for index, url in urls)
        else:
            engines = (
                EngineSupervisor(index, config, run=run, cluster=cluster, observer=observer)
                for index in range(config.inference.num_engines)
            )
        self._engines = {engine.role: engine for engine in engines}
        self._router = (
            None
            if config.inference.router is Router.direct
            else RouterSupervisor(config.inference, run=run, cluster=cluster, observer=observer)
        )

    def report_failure(self, role: str) -> None:
        self._engines[role].report_failure()

    async def keep(self, fleet: Fleet) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            if self._router is not None and fleet.routed is not None:
                group.create_task(self._router.keep(fleet.routed), name="router")
            for engine in self._engines.values():
                group.create_task(engine.keep(fleet), name=engine.role)


class TrainerSupervisor:
    """The torchrun job, restarted from its checkpoint whenever it dies or misses a deadline."""

    role = "trainer"

    def __init__(
        self, job: TrainerJob, *, run: RunDirectory, cluster: Cluster, desk: TrainerDesk, observer: Observer
    ) -> None:
        self._job = job
        self._job_file = run.work / "trainer.json"
        self._log = run.logs / "trainer.log"
        self._cluster = cluster
        self._desk = desk
        self._observer = observer
        self._process: Process | None = None

    async def keep(self) -> None:
        """Until the trainer ends because the run is finished. Raises ProcessFailed when restarting cannot help."""
        self._job_file.parent.mkdir(parents=True, exist_ok=True)
        self._job.save(self._job_file)
        for restarts in range(self._job.trainer.max_restarts + 1):
            self._say("starting", f"restart {restarts}" if restarts else "")
            why = await self._run_once()
            if why is None:
                self._say("stopped")
                return
            self._say("down", why)
        raise ProcessFailed(f"trainer failed {restarts + 1} times: {why}", hint=f"its output is in {self._log}")

    async def restart(self) -> None:
        """End a trainer that missed a deadline; `keep` starts it again."""
        if self._process is not None:
            await self._process.stop(0.0)

    async def _run_once(self) -> str | None:
        """One life of the job. None: it finished; else why it ended."""
        ExitReport.path(self._job_file).unlink(missing_ok=True)
        self._desk.asked.clear()
        python = self._cluster.place(self.role).python
        torchrun = self._cluster.torchrun(self._job.trainer.world_size)
        self._process = await self._cluster.start(
            ProcessSpec(
                role=self.role,
                argv=[
                    python, "-m", "torch.distributed.run", *torchrun,
                    "-m", "agentrl.trainer", "--job", str(self._job_file),
                ],
                env={"OMP_NUM_THREADS": str(self._job.trainer.threads)},
                log=self._log,
            )
        )  # fmt: skip
        exited = asyncio.create_task(self._process.wait())
        late = asyncio.create_task(self._late())
        try:
            await asyncio.wait({exited, late}, return_when=asyncio.FIRST_COMPLETED)
            if not exited.done():
                await self._process.stop(0.0)
                return f"asked for no batch in {self._job.trainer.start_timeout_s:g} s: {log_tail(self._log)}"
            code = exited.result()
        finally:
            late.cancel()
            exited.cancel()
        report = ExitReport.load(self._job_file)
        if code == 0:
            return None
        if report is not None and report.code in (ExitCode.BAD_BATCH, ExitCode.SUPERSEDED):
            raise ProcessFailed(f"trainer: {report.message}", hint=f"its output is in {self._log}")
        return report.message if report is not None else f"exited with {code}: {log_tail(self._log)}"

    async def _late(self) -> None:
        """Returns if the trainer does not ask for a batch in time; never if it does."""
        try:
            async with asyncio.timeout(self._job.trainer.start_timeout_s):
                await self._desk.asked.wait()
        except TimeoutError:
            return
        self._say("up")
        await asyncio.Event().wait()

    def _say(self, state: str, detail: str = "") -> None:
        self._observer.emit(ProcessChanged(role=self.role, state=state, detail=detail))
