"""Task folders of Terminal-Bench 1: task.yaml, Dockerfile, docker-compose.yaml, run-tests.sh, tests/, solution.sh.

Its rule: the task is solved when the short summary of pytest, printed by run-tests.sh, names passed tests and no failed
one. As with Harbor's format, a setting that cannot be honoured is refused by name, and unknown keys are kept.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from agentrl.errors import TaskError
from agentrl.sandbox.provider import Image, SandboxSpec
from agentrl.tasks.compose import check_compose
from agentrl.tasks.containers import container_image
from agentrl.tasks.dockerfile import read_dockerfile, refused
from agentrl.tasks.task import RewardSource, Task
from agentrl.tasks.toml_table import Table

_ABOUT = (
    *("author_name", "author_email", "difficulty", "category", "tags", "asciinema", "disable_asciinema"),
    *("estimated_duration_sec", "expert_time_estimate_min", "junior_time_estimate_min", "canary"),
)
"""Keys that describe, or ask for a recording of the terminal, which is not an agent's matter."""
_SCRIPT = "run-tests.sh"
_TIMEOUT_S = 180.0
"""Of the tests, where the task names none; Terminal-Bench's own default is in that order."""


def load_terminal_bench(folder: Path, *, containers: bool = False) -> Task:
    """Read one task folder. Raises NotRunnable if it cannot run here; TaskError, with file and key, if it is wrong.

    `containers`: it runs in a container image, which holds whatever its Dockerfile does.
    """
    file = folder / "task.yaml"
    table = Table(_parse(file), file=file)
    table.ignore(*_ABOUT)
    parser = table.string("parser_name")
    if parser not in (None, "pytest"):
        raise refused(f"parser_name {parser}")
    if table.flag("run_tests_in_same_shell"):
        raise refused("run_tests_in_same_shell: commands here have a shell each")
    workdir = check_compose(folder, service="client")
    if not (folder / _SCRIPT).is_file():
        raise TaskError(f"{folder}: has no {_SCRIPT}")
    dockerfile = folder / "Dockerfile"
    if containers:
        image = container_image(folder, None)
    else:
        image = read_dockerfile(dockerfile) if dockerfile.is_file() else Image(workdir="/app")
    image = image if workdir is None else replace(image, workdir=workdir)
    for copy in image.copies:
        _refuse_leak(folder, copy.source)
    for step in image.steps:
        for copy in getattr(step, "copies", ()):
            _refuse_leak(folder, copy.source)
    return Task(
        name=folder.name,
        folder=folder,
        instruction=_instruction(table),
        spec=SandboxSpec(image=image),
        agent_timeout_s=table.number("max_agent_timeout_sec", positive=True),
        verifier_timeout_s=table.number("max_test_timeout_sec", positive=True) or _TIMEOUT_S,
        script=_SCRIPT,
        solution_script=_solution(folder),
        source=RewardSource.PYTEST,
        unknown_keys=tuple(table.unknown()),
    )


def _parse(file: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(file.read_text())
    except FileNotFoundError as error:
        raise TaskError(f"{file.parent}: has no task.yaml") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise TaskError(f"{file}: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise TaskError(f"{file}: is not a mapping of settings")
    return found


def _instruction(table: Table) -> str:
    """`instruction`, or the description named base of the older form."""
    text = table.string("instruction")
    for described in table.tables("descriptions"):
        if described.string("key") == "base" and text is None:
            text = described.string("description")
        described.ignore("key", "description")
    if not text or not text.strip():
        raise table.error("instruction", "is missing or empty")
    return text.strip()


def _solution(folder: Path) -> str:
    """The oracle's file, relative to the folder; solution.yaml only where there is no script."""
    listed = folder / "solution.yaml"
    if (folder / "solution.sh").is_file() or not listed.is_file():
        return "solution.sh"
    script_of(listed)  # raises for one that is wrong
    return listed.name


def script_of(file: Path) -> str:
    """The commands that a solution.yaml lists, as a script. Raises TaskError."""
    try:
        listed = yaml.safe_load(file.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise TaskError(f"{file}: {' '.join(str(error).split())}") from error
    if not isinstance(listed, list) or not all(isinstance(one, dict) and "command" in one for one in listed):
        raise TaskError(f"{file}: is not a list of commands")
    return "\n".join([*(str(one["command"]) for one in listed), ""])


def _refuse_leak(folder: Path, source: Path) -> None:
    """The build context is the whole task: what copies all of it would show the agent tests and solution."""
    for hidden in ("tests", _SCRIPT, "solution.sh", "solution.yaml"):
        secret = (folder / hidden).resolve()
        if secret.exists() and (secret == source or secret.is_relative_to(source)):
            raise refused(f"COPY of {hidden}, which the agent must not see")
