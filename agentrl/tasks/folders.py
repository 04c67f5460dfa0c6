"""Task folders of every format: which one a folder is in, and all tasks below a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agentrl.errors import TaskError
from agentrl.tasks.dockerfile import NotRunnable
from agentrl.tasks.harbor import load_harbor
from agentrl.tasks.task import Task
from agentrl.tasks.terminal_bench import load_terminal_bench

_MARKS = ("task.toml", "task.yaml")
"""Files that make a folder a task: Harbor's, Terminal-Bench 1's."""


@dataclass(frozen=True)
class Skipped:
    """A task folder that cannot run here, or that is wrong, and why."""

    folder: Path
    reason: str


def load_task(folder: Path, *, offline: bool = False, containers: bool = False) -> Task:
    """Read one task folder. Raises NotRunnable if it cannot run here; TaskError, with file and key, if it is wrong.

    `offline`: a task that may use a network gets none, instead of being refused. `containers`: tasks run in container
    images, which are not read from their Dockerfiles here.
    """
    if not (folder / "task.toml").is_file() and (folder / "task.yaml").is_file():
        task = load_terminal_bench(folder, containers=containers)
    else:
        task = load_harbor(folder, offline=offline, containers=containers)
    for script in (folder / task.script, folder / task.solution_script):
        _check_line_ends(script)
    return task


def _check_line_ends(script: Path) -> None:
    """A first line that ends in CR LF names an interpreter that no machine has. Raises TaskError."""
    if not script.is_file():
        return
    with script.open("rb") as lines:
        if lines.readline().endswith(b"\r\n"):
            raise TaskError(f"{script}: has Windows line ends (CR LF)", hint=f"sed -i 's/\\r$//' {script}")


def scan_tasks(
    path: Path, *, malformed: list[Skipped] | None = None, offline: bool = False, containers: bool = False
) -> tuple[list[Task], list[Skipped]]:
    """All tasks of a folder (itself a task, or one folder per task below it), in the order of names; and the skipped.

    Raises TaskError for no task at all, for a folder that is wrong, and for two tasks of one name; with a list as
    `malformed`, the latter two are put there instead. `offline` and `containers` as for `load_task`.
    """
    if not path.is_dir():
        raise TaskError(f"{path}: no such folder")
    folders = [path] if is_task(path) else sorted(folder for folder in path.iterdir() if is_task(folder))
    if not folders:
        raise TaskError(f"{path}: holds no task", hint="a task is a folder with a task.toml or a task.yaml")
    by_name: dict[str, Task] = {}
    skipped: list[Skipped] = []
    for folder in folders:
        try:
            task = _load_readable(folder, offline, containers)
            other = by_name.setdefault(task.name, task)
            if other is not task:
                raise TaskError(f"{task.folder} and {other.folder}: both are named {task.name}")
        except NotRunnable as error:
            skipped.append(Skipped(folder, error.message))
        except TaskError as error:
            if malformed is None:
                raise
            malformed.append(Skipped(folder, error.message))
    return list(by_name.values()), skipped


def load_tasks(path: Path) -> list[Task]:
    """As `scan_tasks`, without those that cannot run here."""
    return scan_tasks(path)[0]


def is_task(folder: Path) -> bool:
    return any((folder / mark).is_file() for mark in _MARKS)


def _load_readable(folder: Path, offline: bool, containers: bool) -> Task:
    """As `load_task`; TaskError also for files that cannot be read at all."""
    try:
        return load_task(folder, offline=offline, containers=containers)
    except OSError as error:
        raise TaskError(f"{error.filename or folder}: cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise TaskError(f"{folder}: cannot be read: {error}") from error
