"""How an engine's server process is started, and how one sees that it serves. One class a program.

The supervisor starts what `command` says and asks `ready` until it gives the server's address.
"""

from __future__ import annotations

import json
import math
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import aiohttp

from agentrl.inference.config import Device, EngineBackend, InferenceConfig, Speculation

_READY_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class ServerCommand:
    """One server process."""

    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)


class ServerProgram(Protocol):
    """One engine's server, started again and again under the same name."""

    def command(self, weights_path: str, label: str) -> ServerCommand:
        """Start on these weights, which it calls `label`. Called before each start; what an earlier process left over
        is forgotten."""
        ...

    async def ready(self, host: str) -> str | None:
        """URL of the server once it answers at `host`, None before."""
        ...


@dataclass(frozen=True, kw_only=True)
class Listen:
    """Where a server listens."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: any free one."""


class EmbeddedServer:
    """`python -m agentrl.inference.embedded`; where it chooses its port, it writes it into a file."""

    def __init__(self, config: InferenceConfig, *, python: str, seed: int, listen: Listen, ready_file: Path) -> None:
        self._config = config
        self._python = python
        self._seed = seed
        self._listen = listen
        self._ready_file = ready_file

    def command(self, weights_path: str, label: str) -> ServerCommand:
        self._ready_file.parent.mkdir(parents=True, exist_ok=True)
        self._ready_file.unlink(missing_ok=True)
        config = self._config
        argv = [
            self._python, "-m", "agentrl.inference.embedded",
            "--model-path", weights_path,
            "--weight-version", label,
            "--host", self._listen.host, "--port", str(self._listen.port),
            "--ready-file", str(self._ready_file),
            "--max-running-requests", str(config.max_running_requests),
            "--max-total-tokens", str(config.max_total_tokens),
            "--context-length", str(config.context_length),
            "--dtype", config.dtype.value,
            "--seed", str(self._seed),
        ]  # fmt: skip
        return ServerCommand(argv, {"OMP_NUM_THREADS": str(config.threads)})

    async def ready(self, host: str) -> str | None:
        if self._listen.port:
            return await _if_healthy(f"http://{host}:{self._listen.port}")
        if not self._ready_file.is_file():
            return None
        url: str = json.loads(self._ready_file.read_text())["url"]
        return url


class SGLangServer:
    """`python -m sglang.launch_server` in SGLang's own environment; a free port was free a moment before."""

    def __init__(
        self, config: InferenceConfig, *, python: str, first_gpu: int, seed: int, swing: bool, listen: Listen
    ) -> None:
        """`swing`: its memory is given up while the trainer works."""
        self._config = config
        self._python = python
        self._first_gpu = first_gpu
        self._seed = seed
        self._swing = swing
        self._listen = listen
        self._port = 0

    def command(self, weights_path: str, label: str) -> ServerCommand:
        config, sglang = self._config, self._config.sglang
        self._port = self._listen.port or _free_port()
        argv = [
            self._python, "-m", "sglang.launch_server",
            "--model-path", str(Path(weights_path).resolve()),  # a relative path is taken for a name on a model hub
            "--weight-version", label,
            "--host", self._listen.host, "--port", str(self._port),
            "--device", sglang.device.value,
            "--dtype", config.dtype.value,
            "--max-running-requests", str(config.max_running_requests),
            "--max-total-tokens", str(config.max_total_tokens),
            "--context-length", str(config.context_length),
            "--random-seed", str(self._seed),
            "--skip-tokenizer-init",  # ids in, ids out
            "--skip-server-warmup",
            "--enable-metrics",
        ]  # fmt: skip
        argv += self._features()
        argv += self._cpu() if sglang.device is Device.cpu else self._cuda()
        env = {
            # /health must answer while generation is paused: by default it generates a token, and would wait 20 s.
            "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
            "OMP_NUM_THREADS": str(config.threads),
        }
        if sglang.device is Device.cpu:
            env["SGLANG_USE_CPU_ENGINE"] = "1"
        return ServerCommand([*argv, *sglang.args], env)

    async def ready(self, host: str) -> str | None:
        return await _if_healthy(f"http://{host}:{self._port}")

    def _features(self) -> list[str]:
        sglang = self._config.sglang
        argv: list[str] = []
        if sglang.priority_scheduling:
            # What runs is not put back for what comes: its KV would be computed twice.
            argv += ["--enable-priority-scheduling", "--disable-priority-preemption"]
        if sglang.deterministic:
            argv += ["--enable-deterministic-inference"]
        draft = sglang.speculation
        if draft.algorithm is Speculation.none:
            return argv
        asked = {
            "--speculative-algorithm": draft.algorithm.value,
            "--speculative-draft-model-path": draft.draft_model and str(Path(draft.draft_model).resolve()),
            "--speculative-num-steps": draft.num_steps,
            "--speculative-eagle-topk": draft.topk,
            "--speculative-num-draft-tokens": draft.num_draft_tokens,
        }
        return argv + [text for name, value in asked.items() if value is not None for text in (name, str(value))]

    def _cpu(self) -> list[str]:
        return ["--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--disable-overlap-schedule"]

    def _cuda(self) -> list[str]:
        gpus = self._config.sglang.gpus_per_engine
        placed = ["--tp-size", str(gpus), "--base-gpu-id", str(self._first_gpu)]
        return [*placed, "--enable-memory-saver"] if self._swing else placed


class RouterServer:
    """`python -m sglang_router.launch_router`, on a port that was free a moment before. One for each start."""

    def __init__(self, config: InferenceConfig) -> None:
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.argv = [
            router_python(config), "-m", "sglang_router.launch_router",
            "--host", "127.0.0.1", "--port", str(port),
            "--policy", "manual", "--assignment-mode", "min_load",  # sticky by routing key
            # The controller looks after engines and repeats what failed: the router is to do neither.
            "--disable-retries", "--disable-circuit-breaker", "--disable-health-check",
            "--worker-startup-check-interval", "1",
            "--request-timeout-secs", str(math.ceil(config.request_timeout_s)),
            "--prometheus-host", "127.0.0.1", "--prometheus-port", str(_free_port()),
            "--log-level", "warn",
        ]  # fmt: skip


def router_python(config: InferenceConfig) -> str:
    """Interpreter of the environment that the router is in."""
    if config.router_python is not None:
        return config.router_python
    return config.sglang.python if config.backend is EngineBackend.sglang else sys.executable


def server_program(
    config: InferenceConfig,
    *,
    python: str,
    sglang_python: str,
    first_gpu: int,
    seed: int,
    swing: bool,
    listen: Listen,
    ready_file: Path,
) -> ServerProgram:
    """The program of one engine; not for attached servers. `python` is agentrl's own interpreter."""
    if config.backend is EngineBackend.sglang:
        return SGLangServer(config, python=sglang_python, first_gpu=first_gpu, seed=seed, swing=swing, listen=listen)
    return EmbeddedServer(config, python=python, seed=seed, listen=listen, ready_file=ready_file)


async def _if_healthy(url: str) -> str | None:
    timeout = aiohttp.ClientTimeout(total=_READY_TIMEOUT_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url + "/health") as reply:
            return url if reply.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
