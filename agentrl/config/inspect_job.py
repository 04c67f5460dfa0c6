"""Looks at the files that a job names, to give lint and plan their facts. Reads only; reads no weights."""

from __future__ import annotations

import json
import os
import struct
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from agentrl.config.kubernetes import in_cluster
from agentrl.config.lint import LintFacts
from agentrl.config.plan import ModelShape, PlanFacts
from agentrl.config.schema import JobConfig
from agentrl.errors import TaskError, UserError
from agentrl.model.config import Recipe
from agentrl.tasks.config import Family
from agentrl.tasks.folders import scan_tasks

_MAX_HEADER_BYTES = 1 << 26


def inspect_job(config: JobConfig, file: Path) -> PlanFacts:
    """Facts about the job of a YAML file on this machine. Raises UserError if a task is wrong.

    Nothing is known of what lies in the pods of a cluster.
    """
    if in_cluster(config):
        return PlanFacts(run_stem=file.stem)
    folder = Path(config.model.path) if config.model.recipe is Recipe.none and config.model.path else None
    return PlanFacts(
        run_stem=file.stem,
        model=None if folder is None else model_shape(folder),
        lint=LintFacts(
            num_tasks=_count_tasks(config),
            num_cpus=len(os.sched_getaffinity(0)),
            model_found=None if folder is None else (folder / "config.json").is_file(),
            layer_names=None if folder is None else layer_names(folder),
            tasks_found=None if config.tasks.path is None else Path(config.tasks.path).is_dir(),
        ),
    )


def model_shape(folder: Path) -> ModelShape | None:
    """Shape of a Hugging Face model folder, from config.json and the headers of its safetensors; None if unreadable."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        parameters = sum(_count_parameters(path) for path in sorted(folder.glob("*.safetensors")))
        heads = config["num_attention_heads"]
        head_size = config.get("head_dim") or config["hidden_size"] // heads
        kv_heads = config.get("num_key_value_heads") or heads
        return ModelShape(
            num_parameters=parameters, kv_values_per_token=2 * config["num_hidden_layers"] * kv_heads * head_size
        )
    except (OSError, ValueError, KeyError, TypeError, struct.error):
        return None


def layer_names(folder: Path) -> frozenset[str] | None:
    """Last names of the layers with a matrix of weights, such as `q_proj`; None if no header can be read."""
    try:
        shapes = [shape for path in folder.glob("*.safetensors") for shape in _shapes(path).items()]
    except (OSError, ValueError, KeyError, TypeError, struct.error):
        return None
    return (
        frozenset(name.split(".")[-2] for name, shape in shapes if name.endswith(".weight") and len(shape) == 2) or None
    )


def _count_parameters(path: Path) -> int:
    return sum(_product(shape) for shape in _shapes(path).values())


def _shapes(path: Path) -> dict[str, list[int]]:
    """Of the tensors in one safetensors file: its first 8 bytes give the length of a JSON header."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > _MAX_HEADER_BYTES:
            raise ValueError(f"{path}: header of {length} bytes")
        header: dict[str, Any] = json.loads(file.read(length))
    return {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}


def _product(shape: list[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def _count_tasks(config: JobConfig) -> int | None:
    """Tasks in `tasks.path` that can run and match; None where tasks are generated or no folder is there.

    Raises UserError if a task there is wrong.
    """
    if config.tasks.family is not Family.none or config.tasks.path is None or not Path(config.tasks.path).is_dir():
        return None
    try:
        tasks, _ = scan_tasks(Path(config.tasks.path), offline=config.tasks.offline)
    except TaskError as error:
        raise UserError(error.message, hint=error.hint) from error
    return sum(any(fnmatchcase(task.name, pattern) for pattern in config.tasks.include) for task in tasks)
