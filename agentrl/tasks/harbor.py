"""Task folders in Harbor's format: task.toml, instruction.md, environment/, tests/test.sh, solution/solve.sh.

What a task asks for is given or refused, never dropped: a setting that sandboxes of this machine cannot honour raises
NotRunnable with its name. Keys that nobody knows are kept in `Task.unknown_keys`.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentrl.errors import TaskError
from agentrl.sandbox.provider import Image, SandboxSpec
from agentrl.tasks.dockerfile import NotRunnable, read_dockerfile
from agentrl.tasks.task import Task
from agentrl.tasks.toml_table import Table

_COMPOSE_FILES = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
_USERS = ("root", "agent", "nobody", "daemon")
_HOST_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_SIZE_MB = {"": 1 / (1 << 20), "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024}


@dataclass(frozen=True)
class Skipped:
    """A task folder that cannot run here, or that is wrong, and why."""

    folder: Path
    reason: str


def load_task(folder: Path) -> Task:
    """Read one task folder. Raises NotRunnable if it cannot run here; TaskError, with file and key, if it is wrong."""
    file = folder / "task.toml"
    table = Table(_parse(file), file=file)
    instruction = _text(folder / "instruction.md")
    if not (folder / "tests" / "test.sh").is_file():
        raise TaskError(f"{folder}: has no tests/test.sh")
    if table.items("steps") or table.string("multi_step_reward_strategy") or (folder / "steps").is_dir():
        raise _refused("a task of several steps")
    table.ignore("version", "schema_version", "metadata", "artifacts", "source")
    about = table.table("task")
    about.ignore("description", "authors", "keywords")
    agent, verifier = table.table("agent"), table.table("verifier")
    solution = table.table("solution")
    task = Task(
        name=about.string("name") or folder.name,
        folder=folder,
        instruction=instruction,
        spec=_environment(folder / "environment", table.table("environment")),
        agent_timeout_s=agent.number("timeout_sec", positive=True),
        agent_user=_user(agent),
        verifier_timeout_s=verifier.number("timeout_sec", positive=True) or 600.0,
        verifier_env=_env(verifier, "env"),
        verifier_user=_user(verifier),
        solution_env=_env(solution, "env"),
    )
    _refuse_network(agent)
    if verifier.string("environment_mode") not in (None, "shared"):
        raise _refused("verifier.environment_mode separate")
    if verifier.items("collect"):
        raise _refused("verifier.collect")
    return replace(task, unknown_keys=tuple(table.unknown()))


def scan_tasks(path: Path, *, malformed: list[Skipped] | None = None) -> tuple[list[Task], list[Skipped]]:
    """All tasks of a folder (itself a task, or one folder per task below it), in the order of names; and the skipped.

    Raises TaskError for no task at all, for a folder that is wrong, and for two tasks of one name; with a list as
    `malformed`, the latter two are put there instead.
    """
    if not path.is_dir():
        raise TaskError(f"{path}: no such folder")
    folders = [path] if (path / "task.toml").is_file() else sorted(p.parent for p in path.glob("*/task.toml"))
    if not folders:
        raise TaskError(f"{path}: holds no task", hint="a task is a folder with a task.toml")
    by_name: dict[str, Task] = {}
    skipped: list[Skipped] = []
    for folder in folders:
        try:
            task = _load_readable(folder)
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


def _load_readable(folder: Path) -> Task:
    """As `load_task`; TaskError also for files that cannot be read at all."""
    try:
        return load_task(folder)
    except OSError as error:
        raise TaskError(f"{error.filename or folder}: cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise TaskError(f"{folder}: cannot be read: {error}") from error


def load_tasks(path: Path) -> list[Task]:
    """As `scan_tasks`, without those that cannot run here."""
    return scan_tasks(path)[0]


def _parse(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except FileNotFoundError as error:
        raise TaskError(f"{file.parent}: has no task.toml") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TaskError(f"{file}: {error}") from error


def _text(file: Path) -> str:
    try:
        text = file.read_text().strip()
    except FileNotFoundError as error:
        raise TaskError(f"{file.parent}: has no {file.name}") from error
    except UnicodeDecodeError as error:
        raise TaskError(f"{file}: {error}") from error
    if not text:
        raise TaskError(f"{file}: is empty")
    return text


def _environment(folder: Path, table: Table) -> SandboxSpec:
    if table.string("docker_image"):
        raise _refused("environment.docker_image")
    for name in _COMPOSE_FILES:
        if (folder / name).exists():
            raise _refused(f"services ({name})")
    if table.string("os") not in (None, "linux"):
        raise _refused(f"environment.os {table.string('os')}")
    if table.number("gpus"):
        raise _refused("environment.gpus")
    for key in ("mcp_servers", "gpu_types"):
        if table.items(key):
            raise _refused(f"environment.{key}")
    if list(table.table("healthcheck").unknown()):
        raise _refused("environment.healthcheck")
    _refuse_network(table)
    table.ignore("build_timeout_sec", "healthcheck")  # nothing is built
    return SandboxSpec(
        image=_image(folder, table),
        memory_mb=_megabytes(table, "memory_mb", "memory"),
        disk_mb=_megabytes(table, "storage_mb", "storage"),
        cpus=table.number("cpus", positive=True),
    )


def _image(folder: Path, table: Table) -> Image:
    dockerfile = folder / "Dockerfile"
    image = read_dockerfile(dockerfile) if dockerfile.is_file() else Image()
    workdir = table.string("workdir")
    if workdir is not None and not workdir.startswith("/"):
        raise table.error("workdir", f"must be an absolute path, not {workdir!r}")
    return replace(image, env={**image.env, **_env(table, "env")}, workdir=workdir or image.workdir)


def _refuse_network(table: Table) -> None:
    """No network is what every sandbox has; wanting one, in the new or the old way, cannot be honoured."""
    mode = table.string("network_mode")
    if mode not in (None, "no-network", "public", "allowlist"):
        raise table.error("network_mode", f"must be public, no-network or allowlist, not {mode!r}")
    if mode in ("public", "allowlist"):
        raise _refused(f"network_mode {mode}")
    if table.flag("allow_internet"):
        raise _refused("allow_internet")
    if table.items("allowed_hosts"):
        raise _refused("allowed_hosts")


def _user(table: Table) -> str | None:
    user = table.string("user")
    if user is not None and user not in _USERS and not user.isdigit():
        raise _refused(f"user {user}: the base has {', '.join(_USERS)}")
    return user


def _env(table: Table, key: str) -> dict[str, str]:
    """Variables; `${VAR:-x}` takes x, since sandboxes never see the host's environment."""
    found: dict[str, str] = {}
    for name, value in table.strings(key).items():
        for variable, default in _HOST_VARIABLE.findall(value):
            if f"${{{variable}}}" in value:
                raise _refused(f"{name} wants the host's ${variable}")
            value = value.replace(f"${{{variable}:-{default}}}", default)  # noqa: PLW2901
        found[name] = value
    return found


def _megabytes(table: Table, key: str, legacy: str) -> int | None:
    """MiB, from `key` as a number or from the old form "2G"."""
    number = table.number(key, positive=True)
    text = table.string(legacy)
    if number is None and text is not None:
        match = _SIZE.fullmatch(text.strip())
        if match is None:
            raise table.error(legacy, f'must be a size like "2G", not {text!r}')
        number = float(match[1]) * _SIZE_MB[match[2].upper()]
    return None if number is None else max(1, round(number))


def _refused(what: str) -> NotRunnable:
    return NotRunnable(f"not runnable by the bubblewrap provider: {what}")
