"""Folders that exist only when they are complete: written under a temporary name, synced, renamed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_TEMPORARY = ".tmp"


def temporary(final: Path) -> Path:
    """Name under which `final` is written, beside it. Hidden, so that a listing of complete folders skips it."""
    return final.with_name(f".{final.name}{_TEMPORARY}")


def fresh(folder: Path) -> Path:
    """`folder`, empty, whatever was there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def commit(final: Path) -> None:
    """Make `temporary(final)` appear as `final`, replacing what a repeated step finds there. Survives power loss."""
    source = temporary(final)
    for path in source.iterdir():
        _sync(path)
    _sync(source)
    replaced = source.with_name(source.name + _TEMPORARY)
    if final.exists():
        final.rename(fresh(replaced))  # renamed, not removed: a kill amid removal would leave half a complete folder
    source.rename(final)
    _sync(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def newest(parent: Path, prefix: str) -> Path | None:
    """The complete folder with the highest number, or None."""
    folders = complete(parent, prefix)
    return folders[-1] if folders else None


def complete(parent: Path, prefix: str) -> list[Path]:
    """Complete folders named `prefix` plus a zero-padded number, oldest first."""
    return sorted(path for path in parent.glob(f"{prefix}*") if path.is_dir())


def prune(parent: Path, prefix: str, keep: int) -> None:
    """Remove all but the newest `keep` complete folders, and what killed writers left."""
    for path in complete(parent, prefix)[:-keep]:
        shutil.rmtree(path)
    sweep(parent, prefix)


def sweep(parent: Path, prefix: str) -> None:
    """Remove what killed writers left."""
    for path in parent.glob(f".{prefix}*{_TEMPORARY}"):
        shutil.rmtree(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
