"""Task folders in Harbor's format: task.toml, instruction.md, environment/, tests/test.sh, solution/solve.sh, steps/.

What a task asks for is given or refused, never dropped: a setting that sandboxes of this machine cannot honour raises
NotRunnable with its name. Keys that nobody knows are kept in `Task.unknown_keys`.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentrl.errors import TaskError
from agentrl.sandbox.provider import Image, SandboxSpec
from agentrl.tasks.compose import check_compose
from agentrl.tasks.containers import container_image
from agentrl.tasks.dockerfile import read_dockerfile, refused
from agentrl.tasks.rewards import KEY
from agentrl.tasks.task import Step, StepRewards, Task
from agentrl.tasks.toml_table import Table

_BASE_USERS = ("root", "agent", "nobody", "daemon")
_HOST_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_SIZE_MB = {"": 1 / (1 << 20), "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024}
_VERIFIER_TIMEOUT_S = 600.0
WITHOUT_NETWORK = "runs without a network"
"""What a note says of a task that asks for one."""


def load_harbor(folder: Path, *, offline: bool = False, containers: bool = False) -> Task:
    """Read one task folder. Raises NotRunnable if it cannot run here; TaskError, with file and key, if it is wrong.

    `offline`: a task that may use a network gets none, which its notes say, instead of being refused.
    `containers`: it runs in a container image, which holds whatever its Dockerfile does.
    """
    file = folder / "task.toml"
    table = Table(_parse(file), file=file)
    table.ignore("version", "schema_version", "metadata", "artifacts", "source")
    about = table.table("task")
    about.ignore("description", "authors", "keywords", "version")
    agent, verifier = table.table("agent"), table.table("verifier")
    solution = table.table("solution")
    environment = table.table("environment")
    notes = [*_network(environment, offline), *_network(agent, offline), *_network(verifier, offline)]
    steps = _steps(folder, table)
    spec = _environment(folder / "environment", environment, notes, containers=containers)
    task = Task(
        name=about.string("name") or folder.name,
        folder=folder,
        instruction=steps[0].instruction if steps else _text(folder / "instruction.md"),
        spec=spec,
        agent_timeout_s=agent.number("timeout_sec", positive=True),
        agent_user=_user(agent, spec.image),
        verifier_timeout_s=verifier.number("timeout_sec", positive=True) or _VERIFIER_TIMEOUT_S,
        verifier_env=_env(verifier, "env"),
        verifier_user=_user(verifier, spec.image),
        solution_env=_env(solution, "env"),
        steps=steps,
        step_rewards=_step_rewards(table),
        notes=tuple(notes),
    )
    if verifier.string("environment_mode") not in (None, "shared"):
        raise refused("verifier.environment_mode separate")
    if verifier.items("collect"):
        raise refused("verifier.collect")
    for step in task.steps or (None,):
        if task.grader(step) is None:
            raise TaskError(f"{step.folder if step else folder}: has no tests/test.sh")
    return replace(task, unknown_keys=tuple(table.unknown()))


def _steps(folder: Path, table: Table) -> tuple[Step, ...]:
    """The steps that task.toml lists; empty for a task of one."""
    listed = table.tables("steps")
    if not listed and (folder / "steps").is_dir():
        raise table.error("steps", "is missing, but there is a folder steps/")
    return tuple(_step(folder, one) for one in listed)


def _step(folder: Path, table: Table) -> Step:
    name = table.string("name")
    if name is None or "/" in name or name in ("", ".", ".."):
        raise table.error("name", f"must name a folder in steps/, not {name!r}")
    agent, verifier = table.table("agent"), table.table("verifier")
    if list(table.table("healthcheck").unknown()):
        raise refused("steps.healthcheck")
    table.ignore("artifacts", "healthcheck")
    own = folder / "steps" / name
    return Step(
        name=name,
        instruction=_text(own / "instruction.md"),
        folder=own,
        agent_timeout_s=agent.number("timeout_sec", positive=True),
        verifier_timeout_s=verifier.number("timeout_sec", positive=True),
        verifier_env=_env(verifier, "env"),
        min_reward=table.number_or_numbers("min_reward", KEY),
    )


def _step_rewards(table: Table) -> StepRewards:
    name = table.string("multi_step_reward_strategy")
    try:
        return StepRewards(name or StepRewards.MEAN)
    except ValueError:
        wanted = " or ".join(StepRewards)
        raise table.error("multi_step_reward_strategy", f"must be {wanted}, not {name!r}") from None


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


def _environment(folder: Path, table: Table, notes: list[str], *, containers: bool) -> SandboxSpec:
    image_name = table.string("docker_image")
    if image_name and not containers and not (folder / "Dockerfile").is_file():
        raise refused(f"environment.docker_image {image_name}, without a Dockerfile to make it from")
    if image_name and not containers:
        notes.append(f"docker_image {image_name}: made from environment/Dockerfile instead")
    check_compose(folder, service="main")
    if table.string("os") not in (None, "linux"):
        raise refused(f"environment.os {table.string('os')}")
    if table.number("gpus"):
        raise refused("environment.gpus")
    for key in ("mcp_servers", "gpu_types"):
        if table.items(key):
            raise refused(f"environment.{key}")
    if list(table.table("healthcheck").unknown()):
        raise refused("environment.healthcheck")
    table.ignore("build_timeout_sec", "healthcheck", "skills_dir")  # sandbox.build_timeout_s bounds every build
    return SandboxSpec(
        image=_image(folder, table, container_image(folder, image_name) if containers else None),
        memory_mb=_megabytes(table, "memory_mb", "memory"),
        disk_mb=_megabytes(table, "storage_mb", "storage"),
        cpus=table.number("cpus", positive=True),
    )


def _image(folder: Path, table: Table, container: Image | None) -> Image:
    dockerfile = folder / "Dockerfile"
    image = container or (read_dockerfile(dockerfile) if dockerfile.is_file() else Image())
    workdir = table.string("workdir")
    if workdir is not None and not workdir.startswith("/"):
        raise table.error("workdir", f"must be an absolute path, not {workdir!r}")
    return replace(image, env={**image.env, **_env(table, "env")}, workdir=workdir or image.workdir)


def _network(table: Table, offline: bool) -> list[str]:
    """No network is what every sandbox has. Wanting one, in the new or the old way, is refused, or noted `offline`."""
    mode = table.string("network_mode")
    if mode not in (None, "no-network", "public", "allowlist"):
        raise table.error("network_mode", f"must be public, no-network or allowlist, not {mode!r}")
    wanted = [f"network_mode {mode}"] if mode in ("public", "allowlist") else []
    wanted += ["allow_internet"] if table.flag("allow_internet") else []
    wanted += ["allowed_hosts"] if table.items("allowed_hosts") else []
    if wanted and not offline:
        raise refused(f"{wanted[0]} (tasks.offline=true runs it without a network)")
    return [f"{what}: {WITHOUT_NETWORK}" for what in wanted]


def _user(table: Table, image: Image) -> str | None:
    user = table.string("user")
    bare = not image.steps and image.reference is None
    if user is not None and user not in _BASE_USERS and not user.isdigit() and bare:
        raise refused(f"user {user}: the base has {', '.join(_BASE_USERS)}")
    return user


def _env(table: Table, key: str) -> dict[str, str]:
    """Variables; `${VAR:-x}` takes x, since sandboxes never see the host's environment."""
    found: dict[str, str] = {}
    for name, value in table.strings(key).items():
        for variable, default in _HOST_VARIABLE.findall(value):
            if f"${{{variable}}}" in value:
                raise refused(f"{name} wants the host's ${variable}")
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
