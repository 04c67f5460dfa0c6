"""What a task generator returns: the files of one task folder, not yet on disk."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TaskFiles:
    """One task folder in Harbor's format."""

    name: str
    """Folder name and task name; unique in the family."""
    files: dict[str, str]
    """Relative path -> content, e.g. `instruction.md`, `task.toml`, `environment/Dockerfile`, `tests/test.sh`. Files
    that end in `.sh` are written executable."""
