"""Files that a command writes at its end: whether it can is found out before it begins."""

from __future__ import annotations

import tempfile
from pathlib import Path

from agentrl.errors import UserError


def check_file(option: str, file: Path, *, suffix: str = "") -> None:
    """Whether `file` can be written, by opening it; leaves nothing behind. Raises UserError that names `option`."""
    if suffix and file.suffix != suffix:
        raise UserError(f"{option}: {file}: only {suffix} files are written", hint=f"name it {file.stem}{suffix}")
    if not file.parent.is_dir():
        raise UserError(f"{option}: {file.parent} is not a folder")
    was_there = file.exists()
    if was_there and not file.is_file() and not file.is_dir():
        return  # a pipe or a device: opening it is noticed at its other end
    try:
        with file.open("ab"):
            pass
        if not was_there:
            file.unlink()
    except OSError as error:
        raise _refused(option, file, error) from error


def check_folder(option: str, folder: Path) -> None:
    """Whether files can be written to `folder`, which need not exist; leaves nothing behind. Raises UserError."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _refused(option, folder, error) from error
    finally:
        for path in missing:
            if path.is_dir():
                path.rmdir()


def _refused(option: str, path: Path, error: OSError) -> UserError:
    return UserError(f"{option}: {path}: cannot be written: {error.strerror}")
