"""Which configs and group options exist, and which file each name means: the folders that composition searches.

The folder of the user's file comes first, then the nearest folder above it that is named `conf`, then ours.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PACKAGED = Path(__file__).resolve().parent.parent / "conf"
BASE = "agentrl"
"""The packaged config that every file begins with."""
SCHEMA = "agentrl_schema"
"""The typed defaults below the base; made in memory, not a file."""


SIMULATED_WORLDS = frozenset({"workload", "hardware"})
"""Packaged folders that are no groups of a job: laws for `agentrl.simulation`."""


@dataclass(frozen=True)
class Catalog:
    """The search path of one user's file."""

    folders: tuple[Path, ...]

    def find(self, name: str) -> Path | None:
        """The file that `name` (`agentrl`, `model/tiny`) means, or None."""
        candidates = (folder / f"{name}.yaml" for folder in self.folders)
        return next((path for path in candidates if path.is_file()), None)

    def is_group(self, group: str) -> bool:
        return any((folder / group).is_dir() for folder in self.folders)

    def options(self, group: str) -> list[str]:
        """Names that may follow `group=`."""
        return sorted({path.stem for folder in self.folders for path in _yaml_files(folder / group)})

    def groups(self) -> list[str]:
        """Groups with at least one option, top level only."""
        names = {
            child.name for folder in self.folders if folder.is_dir() for child in folder.iterdir() if child.is_dir()
        }
        return sorted(name for name in names - SIMULATED_WORLDS if self.options(name))


def catalog_for(file: Path) -> Catalog:
    """The search path of a file at an absolute path."""
    folders = [file.parent]
    above = next((folder for folder in file.parents if folder.name == "conf"), None)
    if above is not None and above != file.parent:
        folders.append(above)
    return Catalog((*folders, PACKAGED))


def shown(path: Path) -> str:
    """A path as messages print it: relative if it lies below the working directory."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """'options: a, b; did you mean 'b'?', for a hint."""
    known = list(options)
    listed = f"options: {', '.join(known)}"
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"{listed}; did you mean '{close[0]}'?" if close else listed


def absolute(path: Path) -> Path:
    """Absolute and without `..`, but with symbolic links kept: a mounted ConfigMap is made of them."""
    return Path(os.path.abspath(path))  # noqa: PTH100 - Path.resolve would follow the links


def _yaml_files(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*.yaml") if path.is_file()] if folder.is_dir() else []
