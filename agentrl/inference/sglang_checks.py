"""What an SGLang must have for agentrl to use it, checked before a run starts and when a server answers."""

from __future__ import annotations

import difflib
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from agentrl.errors import UserError
from agentrl.inference.config import SGLangConfig

OLDEST = (0, 5, 23)
"""Older versions import CUDA kernels whatever the device, and lack the weight-update transaction."""

PATHS = (
    "/generate",
    "/abort_request",
    "/pause_generation",
    "/continue_generation",
    "/flush_cache",
    "/update_weights_from_disk",
    "/init_weights_update_group",
    "/destroy_weights_update_group",
    "/begin_weight_update",
    "/update_weights_from_distributed",
    "/update_weights_from_tensor",
    "/end_weight_update",
    "/update_weight_version",
    "/weights_checker",
    "/release_memory_occupation",
    "/resume_memory_occupation",
    "/v1/loads",
    "/model_info",
    "/server_info",
)
"""Endpoints that `SGLangClient` asks."""

OWN = frozenset({
    "--model-path", "--model", "--weight-version", "--host", "--port", "--device", "--dtype", "--max-running-requests",
    "--max-total-tokens", "--context-length", "--random-seed", "--skip-tokenizer-init", "--tp-size",
    "--tensor-parallel-size", "--base-gpu-id", "--enable-priority-scheduling", "--enable-deterministic-inference",
    "--speculative-algorithm", "--speculative-draft-model-path", "--speculative-draft-model",
    "--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens",
})  # fmt: skip
"""Arguments that follow from settings of their own."""

_PROBE_TIMEOUT_S = 120.0
_SETUP = "scripts/sglang/setup_cpu.sh makes one for CPU; for CUDA see the README"


def check_environment(config: SGLangConfig) -> None:
    """The environment is there, SGLang in it is new enough, and knows every further argument. Raises UserError."""
    where = "inference.sglang.python"
    if not Path(config.python).is_file():
        raise UserError(f"{where}: no interpreter {config.python}", hint=_SETUP)
    version = _run(config.python, "-c", "import importlib.metadata as m; print(m.version('sglang'))")
    if version is None:
        raise UserError(f"{where}: no SGLang in the environment of {config.python}", hint=_SETUP)
    if _parsed(version) < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise UserError(f"{where}: SGLang {version} is too old, {needed} is needed", hint=_SETUP)
    if config.args:
        known = _run(config.python, "-m", "sglang.launch_server", "--help")
        if known is None:
            raise UserError(f"{where}: `-m sglang.launch_server --help` fails", hint="run it to see why")
        check_arguments(config.args, set(re.findall(r"--[a-z][a-z0-9-]*", known)))


def check_router(python: str) -> None:
    """The environment has a router. Raises UserError."""
    if _run(python, "-c", "import sglang_router") is None:
        raise UserError(
            f"inference.router: no sglang-router in the environment of {python}",
            hint=f"{python} -m pip install sglang-router==0.3.2",
        )


def check_arguments(arguments: Iterable[str], known: set[str]) -> None:
    """Raises UserError for an argument that the server does not know, or that another setting decides."""
    for argument in arguments:
        name = argument.partition("=")[0]
        where = f"inference.sglang.args: {argument}"
        if name in OWN:
            raise UserError(f"{where}: follows from another setting", hint="`agentrl show` lists them")
        if not name.startswith("--"):
            raise UserError(f"{where}: is not an argument", hint="write a value as --name=value")
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            raise UserError(f"{where}: this SGLang has no {name}", hint=f"did you mean {close[0]}?" if close else None)


def missing_paths(openapi: dict[str, object]) -> list[str]:
    """Endpoints of `PATHS` that a server's openapi.json lacks."""
    paths = openapi.get("paths")
    return [path for path in PATHS if not isinstance(paths, dict) or path not in paths]


def _parsed(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _run(*argv: str) -> str | None:
    """What a command prints, None if it fails."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
