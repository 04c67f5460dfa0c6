"""What decides an evaluation's result beside the weights, so that two can be compared, or not. Reads files only.

A fingerprint is a flat table of names and values. Two evaluations measure the same if their tables are equal: then a
difference between their results is one of weights, or chance. Which seed was drawn, and how often, is no part of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from agentrl import __version__
from agentrl.config.schema import JobConfig
from agentrl.tasks.task import Task

Fingerprint = dict[str, str]

_SANDBOX = ("isolation", "memory_mb", "disk_mb", "pids", "cpus", "seccomp")
"""Settings of the sandbox that can decide whether an agent succeeds."""
_TEMPLATE_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def fingerprint(
    config: JobConfig, *, greedy: bool, build: Mapping[str, str], tasks: Sequence[Task], weights_folder: Path
) -> Fingerprint:
    """`build`: what the engines say of themselves (`Engine.build`). `weights_folder` holds tokenizer and template."""
    agent = msgspec.to_builtins(config.agent)
    sandbox = msgspec.to_builtins(config.sandbox)
    return {
        "agentrl": __version__,
        "inference.backend": config.inference.backend.value,
        **{f"engine.{name}": value for name, value in sorted(build.items())},
        **{f"agent.{name}": _text(value) for name, value in (agent | ({"temperature": 0} if greedy else {})).items()},
        **{f"sandbox.{name}": _text(sandbox[name]) for name in _SANDBOX},
        "tasks": tasks_digest(tasks),
        "template": template_digest(weights_folder),
    }


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """What keeps two evaluations from being compared, one line each; empty if nothing does."""
    names = sorted({*one, *other})
    return [
        f"{name} {_short(one.get(name))} -> {_short(other.get(name))}"
        for name in names
        if one.get(name) != other.get(name)
    ]


def tasks_digest(tasks: Iterable[Task]) -> str:
    """Twelve hex digits that name these very tasks: their names and every byte of their folders, in any order."""
    state = hashlib.blake2b(digest_size=6)
    for task in sorted(tasks, key=lambda task: task.name):
        state.update(f"{task.name}\0".encode())
        for path in sorted(path for path in task.folder.rglob("*") if path.is_file()):
            _add(state, str(path.relative_to(task.folder)), path)
    return state.hexdigest()


def template_digest(folder: Path) -> str:
    """Twelve hex digits that name a model's tokenizer and chat template."""
    state = hashlib.blake2b(digest_size=6)
    for name in _TEMPLATE_FILES:
        if (folder / name).is_file():
            _add(state, name, folder / name)
    return state.hexdigest()


def _add(state: hashlib.blake2b, name: str, path: Path) -> None:
    content = path.read_bytes()
    state.update(f"{name}\0{len(content)}\0".encode())
    state.update(content)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _short(value: str | None) -> str:
    if value is None:
        return "(none)"
    return value if len(value) <= 40 else f"{value[:37]}..."
