"""Which folders of the machine a sandbox without isolation makes, and removes when it ends. Nothing else may be there.

Paths such as /app and /tests are part of a task, so they are made where they are named, and only where nothing is yet.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from agentrl.errors import ImageError
from agentrl.sandbox.provider import Image
from agentrl.sandbox.supervisor.bare import own_name

GRADING = ("/tests", "/logs", "/solution")
"""Folders of every task."""
_LOGS = ("/logs", "/logs/verifier", "/logs/agent", "/logs/artifacts")
CLEARED = (
    *("/conftest.py", "/pytest.ini", "/.pytest.ini", "/pytest.toml", "/.pytest.toml"),
    *("/pyproject.toml", "/tox.ini", "/setup.cfg"),
)
"""What grading removes from above /tests, lest an agent planted it."""

Exists = Callable[[str], bool]


def in_the_way(*, exists: Exists = os.path.lexists, left: Collection[str] = ()) -> list[str]:
    """What of this machine no task may find there. `left`: folders that an earlier sandbox made, soon to be removed."""
    return [path for path in (*GRADING, *CLEARED) if path not in left and exists(path)]


def folders_of(image: Image, *, exists: Exists = os.path.lexists, left: Collection[str] = ()) -> tuple[str, ...]:
    """The topmost folders to make for an image, none below another. Raises ImageError for what would not be its own."""

    def is_there(path: str) -> bool:
        return path not in left and exists(path)

    made: list[str] = []
    for folder in (*GRADING, *_folders_named(image)):
        if _is_below(folder, made):
            continue
        if is_there(folder):
            raise ImageError(f"needs a {folder} of its own, and without isolation this machine's is there already")
        made.append(_topmost_missing(folder, is_there))
    return tuple(made)


def misfit(image: Image, *users: str | None) -> str | None:
    """What an image, or a task by its users, asks for that no sandbox without isolation gives; None if nothing."""
    if image.steps:
        return "its image has to be built, which needs isolation"
    for user in (image.user, *users):
        if user not in (None, own_name()):
            return f"runs as user {user}: without isolation there is only {own_name()}"
    return None


def make(folders: Iterable[str]) -> None:
    """Make them, each of which must not be there, and what belongs in /logs. Raises OSError, and has made none then."""
    made: list[Path] = []
    try:
        for folder in map(Path, folders):
            folder.mkdir(mode=0o755)
            made.append(folder)
    except OSError:
        for folder in made:
            folder.rmdir()
        raise
    for folder in map(Path, _LOGS):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)


def _folders_named(image: Image) -> list[str]:
    """The working folder, and those that copied files come to."""
    copied = [copy.target if copy.source.is_dir() else posixpath.dirname(copy.target) for copy in image.copies]
    return [posixpath.normpath(folder) for folder in (image.workdir, *copied)]


def _topmost_missing(folder: str, is_there: Exists) -> str:
    while not is_there(above := posixpath.dirname(folder)):
        folder = above
    return folder


def _is_below(folder: str, tops: Iterable[str]) -> bool:
    return any(f"{folder}/".startswith(f"{top}/") for top in tops)
