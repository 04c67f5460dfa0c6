"""`PodSandbox`: the owner's handle of one sandbox that is a pod."""

from __future__ import annotations

import asyncio
import itertools
import stat
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from agentrl.errors import SandboxError, UserError
from agentrl.sandbox.bubblewrap.session import BubblewrapSession
from agentrl.sandbox.bubblewrap.transfer import PIECE_BYTES, Listed, Upload, append, destination, make, pieces, remove
from agentrl.sandbox.death import Death
from agentrl.sandbox.pods.active_timer import ActiveTimer
from agentrl.sandbox.pods.calls import CallError, Calls, Command
from agentrl.sandbox.pods.evidence import PodEnd
from agentrl.sandbox.pods.in_flight import NEWS_S, InFlight
from agentrl.sandbox.pods.snapshot import PodSnapshot, new_file
from agentrl.sandbox.pods.views import PodView
from agentrl.sandbox.pods.words import (
    Answer,
    CouldNotRun,
    Finished,
    Job,
    Lost,
    Outcome,
    RunnerEnded,
    Unending,
    become_script,
    call_script,
    listed_lines,
    put_script,
)
from agentrl.sandbox.provider import NO_LIMITS, CommandLimits, Download, ExecResult, Image
from agentrl.sandbox.supervisor.command import CANNOT_RUN

T = TypeVar("T")

PROBE_TIMEOUT_S = 10.0
MAX_DOWNLOAD_ENTRIES = 10_000
_ENV = {"TERM": "dumb"}
"""Of every command, beside the image's own and the container's."""


@dataclass(frozen=True, kw_only=True)
class PodPlace:
    """What a sandbox needs of its provider."""

    calls: Calls
    view: PodView
    image: Image
    output_limit_bytes: int
    lifetime_s: float
    reconnect_s: float
    """How long to ask again when nothing answers."""
    snapshot_folder: Path | None
    """None: there are no snapshots."""
    snapshot_bytes: int
    known_users: set[str]
    """Users that commands of this image can become; shared, and added to."""
    end: Callable[[], Coroutine[Any, Any, None]]
    """Have the pod deleted."""
    handed_out: Callable[[str | None], None]
    """Note whose it is now. Raises SandboxError if the pod is not known to be there."""


class PodSandbox:
    """Implements `Sandbox`. Commands run one after another; files and probes pass them by."""

    def __init__(self, place: PodPlace) -> None:
        self._place = place
        self._calls = place.calls
        self._view = place.view
        self._name = place.view.name
        self._closed = False
        self._line = asyncio.Lock()
        """Held by the command that runs."""
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._in_flight: InFlight | None = None
        """The one that holds the line."""
        self._begun = asyncio.Event()
        """Not set only while a command is on its way into the pod."""
        self._begun.set()
        self._lifetime = ActiveTimer(place.lifetime_s, self._expire)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._snapshots = itertools.count()

    @property
    def id(self) -> str:
        return self._view.name

    async def exec(
        self,
        command: str | list[str],
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        stdin: bytes | None = None,
        timeout_s: float,
        max_output_bytes: int | None = None,
        limits: CommandLimits = NO_LIMITS,
    ) -> ExecResult:
        """See `Sandbox.exec`. What cannot be started exits with 126 or 127, as in a shell, and says why on stderr.

        Raises UserError for a user that the pod's rights do not allow to become.
        """
        result, _ = await self._exec(
            Job(
                command=command,
                cwd=self._cwd(cwd),
                env=self._env(env),
                user=user or self._place.image.user,
                limits=limits,
            ),
            stdin=stdin,
            timeout_s=timeout_s,
            max_output_bytes=max_output_bytes,
        )
        return result

    def session(
        self,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        state: bytes = b"",
        limits: CommandLimits = NO_LIMITS,
    ) -> BubblewrapSession:
        """See `Sandbox.session`. The image needs bash."""

        async def run(
            argv: list[str], env: dict[str, str], handoff: bytes, timeout_s: float, max_output_bytes: int | None
        ) -> tuple[ExecResult, bytes]:
            job = Job(
                command=argv,
                cwd=self._cwd(cwd),
                env={name: value for name, value in env.items() if value},
                user=user or self._place.image.user,
                limits=limits,
                handoff=True,
            )
            return await self._exec(
                job, stdin=None, handoff=handoff, timeout_s=timeout_s, max_output_bytes=max_output_bytes
            )

        return BubblewrapSession(run, {"PATH": "", **self._env(env)}, state)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """See `Sandbox.write`. OSError when the sandbox's file system refuses: full, or a folder is there."""
        await self.put(Upload([{"path": path, "kind": "file", "mode": mode, "size": len(data)}], data))

    async def upload(self, source: Path, target: str) -> None:
        """See `Sandbox.upload`. Links are copied as links. OSError as in `write`; ValueError if it is too large."""
        uploads = pieces(source, target)
        while piece := await asyncio.to_thread(next, uploads, None):
            await self.put(piece)

    async def put(self, upload: Upload) -> None:
        """Make all its files."""
        await self._files(put_script(upload), upload.content)

    async def clear(self, path: str, *, mode: int = 0o755) -> None:
        """See `Sandbox.clear`. OSError when the sandbox's file system refuses."""
        await self._files(call_script("clear_folder", path, f"{mode:o}"))

    async def read(self, path: str, *, max_bytes: int = 1 << 20) -> bytes | None:
        """See `Sandbox.read`."""
        found = await self._files(call_script("get_file", path, 0, max_bytes, "whole"))
        if found.told == ["none"]:
            return None
        if int(found.told[0]) > max_bytes:
            raise ValueError(f"{path} has {found.told[0]} bytes, over the {max_bytes} allowed")
        return found.data

    async def download(self, path: str, target: Path, *, max_bytes: int = 64 << 20) -> Download:
        """See `Sandbox.download`."""
        if await asyncio.to_thread(target.exists):
            raise FileExistsError(f"{target}: is there already")
        found, skipped = await self._list(path)
        total = sum(listed.size for listed in found)
        if total > max_bytes:
            raise ValueError(f"{path} has {total} bytes, over the {max_bytes} allowed")
        make(target, found[0])
        try:
            await self._fetch(path, found[0], target)
            for listed in found[1:]:
                place = destination(target, listed)
                await asyncio.to_thread(make, place, listed)
                await self._fetch(path, listed, place)
        except BaseException:
            await asyncio.to_thread(remove, target)
            raise
        return Download(num_files=sum(not listed.is_folder for listed in found), skipped=skipped)

    async def assign(self, owner: str | None) -> None:
        """See `Sandbox.assign`. What the watch knows decides: a command of its own would take longer than the
        hand-out."""
        self._check()
        self._place.handed_out(owner)
        if owner is not None:
            self._name = f"{self.id} of {owner}"
        self.begin_lifetime()

    def begin_lifetime(self) -> None:
        """From now on its lifetime counts."""
        self._lifetime.start()

    async def probe(self) -> bool:
        """See `Sandbox.probe`."""
        if self._closed or self._view.end is not None:
            return False
        try:
            return not (await self._calls.ask("probe", within_s=PROBE_TIMEOUT_S)).words[1:]
        except CallError:
            return False

    async def kill_all(self) -> int:
        """End every process that runs in it; it stays usable. Returns how many there were."""
        return int((await self._ask("kill_all")).words[0])

    async def freeze(self) -> None:
        """See `Sandbox.freeze`: SIGSTOP to all that commands started. The wall-time limit of a command in flight stops
        with it; later commands wait."""
        self._check()
        self._thawed.clear()
        self._lifetime.stop()
        await self._begun.wait()
        if self._in_flight is not None:
            self._in_flight.freeze()
        await self._ask("freeze")

    async def thaw(self) -> None:
        """See `Sandbox.thaw`."""
        await self._ask("thaw")
        if self._in_flight is not None:
            self._in_flight.thaw()
        self._lifetime.start()
        self._thawed.set()

    async def snapshot(self) -> PodSnapshot:
        """See `Sandbox.snapshot`: of the working folder only, and in time that grows with its size."""
        self._check()
        folder, workdir = self._place.snapshot_folder, self._place.image.workdir
        if folder is None or not workdir:
            raise SandboxError(f"sandbox {self._name}: sandbox.kubernetes.snapshots is none")
        was_frozen = not self._thawed.is_set()
        frozen = await self._ask("freeze")
        try:
            packed = await self._files(call_script("pack_folder", workdir), within_s=300.0)
        finally:
            if not was_frozen:
                await self._ask("thaw")
        if len(packed.data) > self._place.snapshot_bytes:
            raise SandboxError(f"sandbox {self._name}: a snapshot has {len(packed.data)} bytes, over snapshot_mb")
        file = new_file(folder)
        await asyncio.to_thread(file.write_bytes, packed.data)
        return PodSnapshot(file, f"{self.id}@{next(self._snapshots)}", workdir, int(frozen.words[0]))

    async def restore(self, snapshot: PodSnapshot) -> None:
        """Have the files of a snapshot. Raises SandboxError."""
        if snapshot.released:
            raise SandboxError(f"snapshot {snapshot.id} was released")
        data = await asyncio.to_thread(snapshot.file.read_bytes)
        await self._files(call_script("clear_folder", snapshot.workdir, "755"))
        await self._files(call_script("unpack_folder", snapshot.workdir, len(data)), data, within_s=300.0)

    async def close(self) -> None:
        """See `Sandbox.close`: the cluster is told to end it, which takes it a second or two."""
        self._closed = True
        self._lifetime.stop()
        self._thawed.set()  # who waits for that is to find it closed
        if self._in_flight is not None:
            await self._in_flight.drop()
        await self._place.end()

    # --- commands

    def _cwd(self, cwd: str | None) -> str | None:
        return cwd or self._place.image.workdir or None

    def _env(self, env: dict[str, str] | None) -> dict[str, str]:
        return {**_ENV, **self._place.image.env, **(env or {})}

    async def _exec(
        self,
        job: Job,
        *,
        stdin: bytes | None,
        handoff: bytes | None = None,
        timeout_s: float,
        max_output_bytes: int | None,
    ) -> tuple[ExecResult, bytes]:
        """The result of a command, and what it handed off. Cancelled, it is killed before the next one begins."""
        self._check()
        if job.user is not None:
            await self._check_user(job.user)
        most = self._place.output_limit_bytes if max_output_bytes is None else max_output_bytes
        flight = InFlight(self._view, timeout_s)
        running = self._keep(self._in_turn(job, stdin, handoff, most, flight))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            flight.give_up()
            raise

    async def _in_turn(
        self, job: Job, stdin: bytes | None, handoff: bytes | None, most: int, flight: InFlight
    ) -> tuple[ExecResult, bytes]:
        async with self._line:
            await self._thawed.wait()
            self._check()
            if flight.given_up:
                raise SandboxError("given up before it began")
            self._in_flight = flight
            try:
                outcome = await self._outcome(job, stdin, handoff, most, flight)
            except (ValueError, UnicodeEncodeError) as error:  # a zero byte or a lone surrogate
                return _could_not_run(str(error)), b""
            except CallError as error:
                raise await self._lost(str(error)) from error
            finally:
                self._in_flight = None
            return await self._result(outcome, flight)

    async def _outcome(
        self, job: Job, stdin: bytes | None, handoff: bytes | None, most: int, flight: InFlight
    ) -> Outcome:
        self._begun.clear()
        try:
            started = await self._calls.start(
                job, stdin=stdin, handoff=handoff, max_output_bytes=most, within_s=self._place.reconnect_s
            )
        finally:
            self._begun.set()
        if not isinstance(started, Command):
            return started
        return await flight.to_end(started, frozen=not self._thawed.is_set())

    async def _result(self, outcome: Outcome, flight: InFlight) -> tuple[ExecResult, bytes]:
        """What a command came to. Raises SandboxError for one that the sandbox was lost in."""
        if isinstance(outcome, Finished):
            end = outcome.end
            result = ExecResult(
                exit_code=end.exit_code,
                signal=end.signal,
                stdout=outcome.stdout,
                stderr=outcome.stderr,
                timed_out=end.killed and flight.timed_out,
                oom=end.oom,
                truncated=end.more > 0,
                bytes_total=len(outcome.stdout) + len(outcome.stderr) + end.more,
                leftover_processes=end.leftover,
                duration_s=end.duration_s,
            )
            return result, outcome.handoff
        if isinstance(outcome, CouldNotRun):
            return _could_not_run(outcome.problem), b""
        if isinstance(outcome, RunnerEnded | Unending) and await self.probe():
            # Nothing outside ends the runner alone, or holds a killed command: it is the command's own doing.
            await self._ask("kill_all")
            code = outcome.exit_code or 0 if isinstance(outcome, RunnerEnded) else 0
            return ExecResult(
                exit_code=None, signal=max(code - 128, 0) or None, stdout=b"", stderr=b"", timed_out=flight.timed_out
            ), b""
        raise await self._lost(outcome.why if isinstance(outcome, Lost) else "neither command nor pod answers")

    # --- what else is asked of the pod

    async def _files(self, script: str, content: bytes = b"", *, within_s: float | None = None) -> Answer:
        """Have files put, read or listed. Raises OSError for what the sandbox's file system refuses."""
        found = await self._ask("files", content, script=script, within_s=within_s)
        if found.status != 0:
            raise OSError(f"sandbox {self._name}: {found.problem or f'status {found.status}'}")
        return found

    async def _ask(
        self, operation: str, payload: bytes = b"", *, script: str | None = None, within_s: float | None = None
    ) -> Answer:
        self._check()
        try:
            return await self._calls.ask(
                operation, payload, script=script, within_s=within_s or self._place.reconnect_s
            )
        except CallError as error:
            raise await self._lost(str(error)) from error

    async def _check_user(self, user: str) -> None:
        """Raises UserError if commands cannot become this user."""
        if user in self._place.known_users:
            return
        found = await self._ask("files", script=become_script(user))
        if found.status != 0:
            raise UserError(
                f"a task's commands run as user {user}: {found.problem}",
                hint="leave sandbox.kubernetes.run_as_user unset, and have setpriv or su in the image",
            )
        self._place.known_users.add(user)

    async def _list(self, path: str) -> tuple[list[Listed], tuple[str, ...]]:
        """The files and folders at a path, itself first, and what else is there."""
        found = await self._files(call_script("list_files", path, MAX_DOWNLOAD_ENTRIES + 1))
        if found.told == ["none"]:
            raise FileNotFoundError(f"{path}: nothing to download in the sandbox")
        lines = list(listed_lines(found.data))
        if len(lines) > MAX_DOWNLOAD_ENTRIES:
            raise ValueError(f"{path} has more than {MAX_DOWNLOAD_ENTRIES} files and folders")
        kept, skipped = [], []
        for mode, size, where in lines:
            inside = where.removeprefix(path).lstrip("/")
            if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
                kept.append(Listed(inside, stat.S_ISDIR(mode), stat.S_IMODE(mode), 0 if stat.S_ISDIR(mode) else size))
            else:
                skipped.append(inside)
        return kept, tuple(skipped)

    async def _fetch(self, path: str, listed: Listed, target: Path) -> None:
        """Fill one file of a download with what it has now, at most as long as it was listed."""
        inside = f"{path.rstrip('/')}/{listed.path}" if listed.path else path
        offset = 0
        while offset < listed.size:
            wanted = min(PIECE_BYTES, listed.size - offset)
            data = (await self._files(call_script("get_file", inside, offset, wanted, ""))).data
            if not data:
                return
            await asyncio.to_thread(append, target, data)
            offset += len(data)

    # --- its end

    def _check(self) -> None:
        """Raises SandboxError for one that has ended."""
        if self._view.end is not None and not self._closed:
            raise self._ended(self._view.end)
        if self._closed:
            raise SandboxError(f"sandbox {self._name} is closed")

    async def _lost(self, why: str) -> SandboxError:
        """The error for a pod that answers no more, with what the cluster says of it."""
        if not self._closed:
            await self._view.until(lambda view: view.end is not None or self._closed, within_s=NEWS_S)
        if self._closed:
            return SandboxError(f"sandbox {self._name} is closed")
        if self._view.end is not None:
            return self._ended(self._view.end)
        return SandboxError(f"sandbox {self._name}: {why}", death=Death.UNREACHABLE)

    def _ended(self, end: PodEnd) -> SandboxError:
        return SandboxError(f"sandbox {self._name}: {end.text}", death=end.death)

    def _expire(self) -> None:
        """Its lifetime is over."""
        self._view.decree(PodEnd(Death.EXPIRED, f"outlived sandbox.lifetime_s ({self._place.lifetime_s:g} s)"))
        self._keep(self._place.end())

    def _keep(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run something that goes on whatever becomes of who asked. Its error is told to who waits, if anyone does."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()


def _could_not_run(problem: str) -> ExecResult:
    text = f"sandbox: cannot run: {problem}\n".encode(errors="replace")
    return ExecResult(exit_code=CANNOT_RUN, signal=None, stdout=b"", stderr=text, bytes_total=len(text))
