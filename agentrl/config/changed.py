"""The configuration of a run that was launched, with overrides: what a command that uses it again takes."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml

from agentrl.config import overrides as command_line
from agentrl.config.catalog import BASE, catalog_for, shown
from agentrl.config.compose import load
from agentrl.config.schema import JobConfig
from agentrl.config.tree import Tree, to_tree
from agentrl.config.yaml_file import read_yaml

_FILE = "run.yaml"


def changed(config: JobConfig, overrides: Sequence[str]) -> JobConfig:
    """`config` with Hydra overrides. What an option such as `inference=sglang` says wins over the run's own settings,
    which hold where it says nothing. Raises UserError."""
    if not overrides:
        return config
    with tempfile.TemporaryDirectory(prefix="agentrl-config-") as folder:
        file = Path(folder) / _FILE
        tree = to_tree(config)
        catalog = catalog_for(file)
        for override in command_line.parse(overrides):
            if override.option is not None and (option := catalog.find(override.option)) is not None:
                for key in read_yaml(option, shown(option)).marks(override.key):
                    _leave_out(tree, key)
        file.write_text(yaml.safe_dump({"defaults": [BASE, "_self_"], **tree}, sort_keys=False), encoding="utf-8")
        return load(file, overrides).config


def _leave_out(tree: Tree, key: str) -> None:
    *parents, last = key.split(".")
    node = tree
    for parent in parents:
        node = node.get(parent) or {}
    node.pop(last, None)
