"""An engine and sandboxes that answer at once: what is left of a run's time with them is the controller's own.

They keep the protocols' promises (abort, pause, versions, closing), but sample a script and execute nothing.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

from agentrl.errors import EngineError, SandboxError
from agentrl.inference.engine import EngineLoad, FinishReason, Generation, PauseMode, SamplingParams
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
from agentrl.simulation.session import SimulatedSession
from agentrl.wire import Transfer


class InstantEngine:
    """Answers the n-th turn of every episode with the n-th message of a script."""

    def __init__(self, name: str, script: Sequence[Sequence[int]], *, capacity_tokens: int = 1 << 30) -> None:
        """`script`: token ids of each turn's message, stop token included; the last one repeats."""
        self.name = self.url = name
        self._script = [list(ids) for ids in script]
        self._capacity_tokens = capacity_tokens
        self._version = 0
        self._open = asyncio.Event()
        self._open.set()
        self.alive = True

    async def generate(self, rid: str, input_ids: list[int], params: SamplingParams) -> Generation:
        await self._open.wait()
        self._check()
        turn = int(rid.rsplit(".t", 1)[1].partition(".")[0])
        ids = self._script[min(turn, len(self._script) - 1)][: params.max_new_tokens]
        stopped = bool(ids) and ids[-1] in params.stop_token_ids
        return Generation(
            ids=ids,
            logprobs=[-1.0] * len(ids),
            versions=[self._version] * len(ids),
            finish=FinishReason.STOP if stopped else FinishReason.LENGTH,
        )

    async def best_logprobs(self, ids: list[int], ends: list[int]) -> list[float]:
        self._check()
        return [-1.0] * len(ends)

    async def abort(self, rid: str | None) -> None:
        self._check()

    async def pause(self, mode: PauseMode = PauseMode.ABORT) -> None:
        self._check()
        self._open.clear()

    async def resume(self) -> None:
        self._check()
        self._open.set()

    async def flush_cache(self) -> None:
        self._check()

    async def update_weights(self, path: str, version: int, *, flush_cache: bool = True) -> None:
        self._check()
        self._version = version

    async def receive_weights(self, transfer: Transfer, *, flush_cache: bool = True) -> None:
        self._check()
        self._version = transfer.version

    async def checksums(self) -> dict[str, str]:
        self._check()
        return {}

    async def release_memory(self) -> None:
        self._check()

    async def resume_memory(self) -> None:
        self._check()

    async def load(self) -> EngineLoad:
        self._check()
        return EngineLoad(num_running=0, num_queued=0, kv_tokens_used=0, kv_tokens_capacity=self._capacity_tokens)

    async def gauges(self) -> dict[str, float]:
        return {}

    async def version(self) -> int:
        self._check()
        return self._version

    async def build(self) -> dict[str, str]:
        self._check()
        return {"version": "instant"}

    async def healthy(self) -> bool:
        return self.alive

    async def close(self) -> None:
        return

    def _check(self) -> None:
        if not self.alive:
            raise EngineError(f"{self.name} is dead")


class InstantSandbox:
    """Every command succeeds with the same output; files written can be read; the verifier's reward is given."""

    def __init__(self, sandbox_id: str, *, output: bytes, reward: bytes) -> None:
        self.id = sandbox_id
        self._output = output
        self._files: dict[str, bytes] = {}
        self._reward = reward
        self.alive = True

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
        if "test.sh" in str(command):
            self._files["/logs/verifier/reward.txt"] = self._reward
        return ExecResult(exit_code=0, signal=None, stdout=self._output, stderr=b"", bytes_total=len(self._output))

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

    async def read(self, path: str, *, max_bytes: int = 1 << 20) -> bytes | None:
        self._check()
        return self._files.get(path)

    async def download(self, path: str, target: Path, *, max_bytes: int = 64 << 20) -> Download:
        self._check()
        if path not in self._files:
            raise FileNotFoundError(path)
        with target.open("xb") as file:
            file.write(self._files[path])
        return Download(num_files=1)

    async def assign(self, owner: str | None) -> None:
        self._check()

    async def probe(self) -> bool:
        return self.alive

    async def freeze(self) -> None:
        self._check()

    async def thaw(self) -> None:
        self._check()

    async def kill_all(self) -> int:
        self._check()
        return 0

    async def snapshot(self) -> Snapshot:
        raise SandboxError(f"{self.id} makes no snapshots")

    async def close(self) -> None:
        self.alive = False

    def _check(self) -> None:
        if not self.alive:
            raise SandboxError(f"{self.id} is closed")


class InstantProvider:
    """Starts `InstantSandbox`es."""

    def __init__(self, *, output: bytes = b"ok\n", reward: bytes = b"1\n") -> None:
        self._output = output
        self._reward = reward
        self._numbers = itertools.count()

    @property
    def room(self) -> int:
        return 1 << 20

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(snapshot=False, build=False)

    async def prepare(self, image: Image) -> None:
        return

    async def create(
        self, spec: SandboxSpec, *, snapshot: Snapshot | None = None, on_begin: Callable[[], None] = unheard
    ) -> InstantSandbox:
        on_begin()
        return InstantSandbox(f"instant-{next(self._numbers)}", output=self._output, reward=self._reward)

    async def close(self) -> None:
        return
