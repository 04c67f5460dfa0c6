"""Generators of tasks that ship with agentrl, and how their tasks get to disk."""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from agentrl.tasks.config import Family
from agentrl.tasks.families.files import TaskFiles

Generate = Callable[[int, int], list[TaskFiles]]
"""(count, seed) -> that many different tasks, in an order in which a larger count extends a smaller one."""


def _lazy(module: str) -> Generate:
    def generate(count: int, seed: int) -> list[TaskFiles]:
        made: list[TaskFiles] = importlib.import_module(f"agentrl.tasks.families.{module}").generate(count, seed)
        return made

    return generate


FAMILIES: dict[Family, Generate] = {
    Family.boxes: _lazy("boxes"),
    Family.shell_basics: _lazy("shell_basics"),
}


def digest(tasks: list[TaskFiles]) -> str:
    """Twelve hex digits that name these very tasks."""
    state = hashlib.blake2b(digest_size=6)
    for task in tasks:
        for path, content in sorted(task.files.items()):
            state.update(f"{task.name}\0{path}\0{len(content)}\0{content}".encode())
    return state.hexdigest()


def write_tasks(tasks: list[TaskFiles], out: Path) -> None:
    """Write one folder per task under `out`, which must not exist yet: it appears complete, or not at all.

    The same tasks give the same bytes and modes. Raises FileExistsError, and OSError where nothing can be written.
    """
    if out.exists():
        raise FileExistsError(f"{out} is there already")
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        for task in tasks:
            for path, content in task.files.items():
                _write(partial / task.name / _safe(path), content)
        partial.rename(out)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _safe(path: str) -> PurePosixPath:
    relative = PurePosixPath(path)
    assert not relative.is_absolute() and ".." not in relative.parts, f"a generator must stay in its folder: {path}"
    return relative


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode())
    path.chmod(0o755 if path.suffix == ".sh" else 0o644)
