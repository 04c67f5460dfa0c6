"""Simulated sandboxes: the provider's protocol in virtual time, as the drawn lives say.

A sandbox's life is that of its owner, once it has one. Commands are those of `tongue` (`turn 7`), the verifier's
script, and `sleep N`; everything else takes no time. Files written can be read.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.clock import monotonic
from agentrl.errors import SandboxError
from agentrl.sandbox.provider import (
    NO_LIMITS,
    Capabilities,
    CommandLimits,
    Download,
    ExecResult,
    Image,
    SandboxSpec,
    Snapshot,
    unheard,
)
from agentrl.simulation.life import Life, World
from agentrl.simulation.session import SimulatedSession
from agentrl.simulation.tongue import parse_episode
from agentrl.tasks.verifier import LOGS, TESTS

LOST = "lost"
"""Why a sandbox answers no more whose owner's life said so."""
_VERIFY = f"{TESTS}/test.sh"
SNAPSHOT_S = 0.03
"""A snapshot, whatever it holds: measured by scripts/bench/sandbox.py."""
FORK_S = 0.05
"""The start of a sandbox from a snapshot: as any start, without what an image's set-up takes."""


@dataclass(frozen=True, kw_only=True)
class _Effect:
    """What a command does to its sandbox."""

    duration_s: float = 0.0
    output: bytes = b""
    files: dict[str, bytes] = field(default_factory=dict)
    fatal: bool = False
    """The sandbox is lost at its end."""


@dataclass(eq=False)
class SimulatedSnapshot:
    """The files of a sandbox at one moment."""

    id: str
    files: dict[str, bytes]
    leftover_processes: int = 0
    released: bool = False

    async def release(self) -> None:
        self.released = True


class SimulatedSandbox:
    """One sandbox with its own clock, which stands still while it is frozen."""

    def __init__(
        self, sandbox_id: str, owner: str | None, world: World, on_close: Callable[[SimulatedSandbox, str], None]
    ) -> None:
        """`on_close` is told why it ended."""
        self.id = sandbox_id
        self.owner = owner
        self._world = world
        self._life = owned_life(world, owner)
        self._on_close = on_close
        self._files: dict[str, bytes] = {}
        self._snapshots = itertools.count()
        self._lock = asyncio.Lock()
        self._frozen = False
        self._problem: str | None = None
        """Why it answers no more."""
        self._changed = asyncio.Event()

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
        self._check()
        async with self._lock:
            effect = self._effect(command if isinstance(command, list) else command.split())
            await self._work(min(effect.duration_s, timeout_s))
            if effect.fatal:
                self.die(LOST)
                self._check()
            if effect.duration_s > timeout_s:
                return ExecResult(
                    exit_code=None, signal=None, stdout=b"", stderr=b"", timed_out=True, duration_s=timeout_s
                )
            self._files.update(effect.files)
            return ExecResult(
                exit_code=0,
                signal=None,
                stdout=effect.output[:max_output_bytes],
                stderr=b"",
                bytes_total=len(effect.output),
                duration_s=effect.duration_s,
            )

    def session(
        self,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        state: bytes = b"",
        limits: CommandLimits = NO_LIMITS,
    ) -> SimulatedSession:
        return SimulatedSession(self, user=user, state=state)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        self._check()
        self._files[path] = data

    async def upload(self, source: Path, target: str) -> None:
        self._check()

    async def clear(self, path: str, *, mode: int = 0o755) -> None:
        self._check()
        self._files = {name: data for name, data in self._files.items() if not name.startswith(f"{path}/")}

    async def read(self, path: str, *, max_bytes: int = 1 << 20) -> bytes | None:
        self._check()
        data = self._files.get(path)
        if data is not None and len(data) > max_bytes:
            raise ValueError(f"{path}: {len(data)} bytes, more than {max_bytes}")
        return data

    async def download(self, path: str, target: Path, *, max_bytes: int = 64 << 20) -> Download:
        """Of single files."""
        data = await self.read(path, max_bytes=max_bytes)
        if data is None:
            raise FileNotFoundError(f"{path}: nothing to download in the sandbox")
        with target.open("xb") as file:
            file.write(data)
        return Download(num_files=1)

    async def assign(self, owner: str | None) -> None:
        """In the time that its owner's life says."""
        self._check()
        life = owned_life(self._world, owner)
        await asyncio.sleep(life.start_warm_s if life else 0.0)
        self._check()
        self.owner, self._life = owner, life

    async def probe(self) -> bool:
        return self._problem is None

    async def kill_all(self) -> int:
        """Its commands leave nothing behind."""
        self._check()
        return 0

    async def freeze(self) -> None:
        self._check()
        self._frozen = True
        self._notify()

    async def thaw(self) -> None:
        self._check()
        self._frozen = False
        self._notify()

    def restore(self, snapshot: SimulatedSnapshot) -> None:
        """Have the snapshot's files."""
        self._files = dict(snapshot.files)

    async def snapshot(self) -> SimulatedSnapshot:
        self._check()
        files = {path: data for path, data in self._files.items() if not path.startswith((f"{TESTS}/", "/logs/"))}
        snapshot = SimulatedSnapshot(f"{self.id}@{next(self._snapshots)}", files, int(self._lock.locked()))
        await asyncio.sleep(SNAPSHOT_S)
        self._check()
        return snapshot

    async def close(self) -> None:
        self.die("closed")

    def die(self, problem: str) -> None:
        """It answers no more, and what runs in it fails. The first reason stands."""
        if self._problem is None:
            self._problem = problem
            self._on_close(self, problem)
            self._notify()

    def _effect(self, words: list[str]) -> _Effect:
        """What a command does."""
        if words[:1] == ["sleep"]:
            return _Effect(duration_s=float(words[1]))
        life = self._life
        if life is not None and _VERIFY in words:
            reward = {f"{LOGS}/reward.txt": f"{life.reward:g}\n".encode()}
            return _Effect(duration_s=life.verifier_s, files=reward, fatal=life.failure_turn == len(life.turns) - 1)
        if life is not None and words[:1] == ["turn"]:
            number = int(words[-1])
            turn = life.turns[number]
            output = f"output {turn.observation_tokens}\n".encode()
            return _Effect(duration_s=turn.tool_s, output=output, fatal=life.failure_turn == number)
        return _Effect()

    async def _work(self, duration_s: float) -> None:
        """Let time pass inside. Raises SandboxError if the sandbox ends meanwhile."""
        left_s = duration_s
        while left_s > 0 or self._frozen:
            frozen, began = self._frozen, monotonic()
            try:
                async with asyncio.timeout(None if frozen else left_s):
                    await self._changed.wait()
            except TimeoutError:
                return
            self._check()
            left_s -= 0.0 if frozen else monotonic() - began

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _check(self) -> None:
        if self._problem is not None:
            raise SandboxError(f"{self.id}: {self._problem}")


class SimulatedProvider:
    """Starts sandboxes, some at once. Each takes as long as its owner's life says, or, without one, as its number."""

    def __init__(
        self,
        world: World,
        *,
        starts_at_once: int,
        start_timeout_s: float,
        max_sandboxes: int = 1 << 20,
    ) -> None:
        """`max_sandboxes` is only told, as room: whoever asks for more gets them."""
        self._world = world
        self._starting = asyncio.Semaphore(starts_at_once)
        self.start_timeout_s = start_timeout_s
        self._max_sandboxes = max_sandboxes
        self._num_starting = 0
        self._numbers = itertools.count()
        self._cold_starts = itertools.count()
        self._open: dict[str, SimulatedSandbox] = {}
        self._closed = False
        self.lost: set[str] = set()
        """Owners whose sandboxes were lost as their lives said."""

    @property
    def open(self) -> tuple[SimulatedSandbox, ...]:
        """Sandboxes that are alive, in the order in which they came up."""
        return tuple(self._open.values())

    @property
    def room(self) -> int:
        return max(self._max_sandboxes - len(self._open) - self._num_starting, 0)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(snapshot=True, build=True)

    async def prepare(self, image: Image) -> None:
        """What building an image takes is in the lives' cold starts."""

    async def create(
        self, spec: SandboxSpec, *, snapshot: Snapshot | None = None, on_begin: Callable[[], None] = unheard
    ) -> SimulatedSandbox:
        self._check()
        _check_snapshot(snapshot)
        self._num_starting += 1
        try:
            async with self._starting:
                on_begin()
                await self._start(FORK_S if snapshot is not None else self._cold_s(spec.owner))
        finally:
            self._num_starting -= 1
        self._check()
        sandbox_id = f"sandbox-{next(self._numbers):06d}"
        sandbox = self._make(sandbox_id, spec.owner)
        if isinstance(snapshot, SimulatedSnapshot):
            sandbox.restore(snapshot)
        self._open[sandbox_id] = sandbox
        return sandbox

    def _make(self, sandbox_id: str, owner: str | None) -> SimulatedSandbox:
        return SimulatedSandbox(sandbox_id, owner, self._world, self._closed_one)

    def _closed_one(self, sandbox: SimulatedSandbox, problem: str) -> None:
        self._open.pop(sandbox.id, None)
        if problem == LOST and sandbox.owner is not None:
            self.lost.add(sandbox.owner)

    def _cold_s(self, owner: str | None) -> float:
        life = owned_life(self._world, owner)
        return self._world.cold_start_s(next(self._cold_starts)) if life is None else life.start_cold_s

    async def close(self) -> None:
        self._closed = True
        for sandbox in self.open:
            await sandbox.close()

    async def _start(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, self.start_timeout_s))
        if seconds > self.start_timeout_s:
            raise SandboxError(f"sandbox did not start in {self.start_timeout_s:g} s")

    def _check(self) -> None:
        if self._closed:
            raise SandboxError("the provider is closed")


def owned_life(world: World, owner: str | None) -> Life | None:
    """The life of an episode; None for nobody's."""
    return None if owner is None else world.life(*parse_episode(owner))


def _check_snapshot(snapshot: Snapshot | None) -> None:
    if snapshot is not None and (not isinstance(snapshot, SimulatedSnapshot) or snapshot.released):
        raise SandboxError(f"snapshot {snapshot.id} was released, or is another provider's")
