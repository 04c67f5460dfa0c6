"""Processes that run a function of the supervisor package in a Python that has loaded nothing else."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import agentrl

_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from agentrl.sandbox.supervisor.{0} import {1}; {1}()"


def command(module: str, function: str, *arguments: str) -> list[str]:
    """The command line; `function` finds its arguments in sys.argv[1:]."""
    root = str(Path(agentrl.__file__).parents[1])
    return [sys.executable, "-I", "-S", "-X", "utf8", "-c", _START.format(module, function), root, *arguments]


def environment() -> dict[str, str]:
    """What such a process needs of ours: the ways to Python's own library and to newuidmap."""
    return {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PATH") if name in os.environ}
