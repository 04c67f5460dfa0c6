"""A job's configuration between its two forms: frozen dataclasses, and a tree of plain dicts, lists and scalars.

The tree is what `config.yaml` in a run directory holds. Reading it back needs no Hydra: nothing is left to compose.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import yaml

from agentrl.config.schema import JobConfig
from agentrl.errors import UserError

Tree = dict[str, Any]


def to_tree(config: JobConfig) -> Tree:
    """Plain dicts, lists and scalars; enums as their names."""
    tree: Tree = msgspec.to_builtins(config)
    return tree


def from_tree(tree: Tree) -> JobConfig:
    """The dataclasses of a complete or partial tree; what it leaves out takes the schema's default.

    Raises UserError on a wrong type or a value out of range. Does not look for unknown keys: `compose.load` does.
    """
    try:
        return msgspec.convert(tree, JobConfig)
    except msgspec.ValidationError as error:
        raise UserError(str(error)) from error


def to_text(config: JobConfig) -> str:
    """The tree as YAML, in the schema's order. `read` gives the same config back."""
    text: str = yaml.safe_dump(
        to_tree(config), sort_keys=False, allow_unicode=True, default_flow_style=False, width=120
    )
    return text


def read(path: Path) -> JobConfig:
    """The config that `to_text` wrote to `path`. Raises UserError if the file is not there or is not one."""
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        raise UserError(f"{path}: not a resolved configuration", hint="expected the config.yaml of a run directory")
    return from_tree(tree)
