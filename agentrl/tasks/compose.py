"""Compose files of tasks: one service, which is the sandbox itself, is all that this machine can give.

Task sets bring such a file even for one container. What it sets of that container is checked key by key: what a sandbox
has anyway, or what the harness replaces, is no obstacle; everything else is refused by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from agentrl.errors import TaskError
from agentrl.tasks.dockerfile import refused

_FILES = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
_HARMLESS = {"image", "container_name", "command", "tty", "stdin_open", "init", "platform", "hostname", "restart"}
"""The container's names, and how it is kept up."""
_TEST_DIR = "TEST_DIR"


def check_compose(folder: Path, *, service: str) -> str | None:
    """The working folder that the sandbox's service sets, if it does: the only one, or the one of that name.

    Raises NotRunnable for a compose file that asks for more than that service; TaskError if it is wrong.
    """
    workdir: str | None = None
    for name in _FILES:
        file = folder / name
        if file.is_file():
            workdir = _check(file, service) or workdir
    return workdir


def _check(file: Path, service: str) -> str | None:
    try:
        document = yaml.safe_load(file.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise TaskError(f"{file}: {' '.join(str(error).split())}") from error
    services = document.get("services") if isinstance(document, dict) else None
    if not isinstance(services, dict) or not services:
        raise refused(f"services ({file.name} names none)")
    if len(services) == 1:
        (service,) = services
    if others := sorted(str(name) for name in services if name != service):
        raise refused(f"services ({file.name}: {', '.join(others)})")
    if extra := sorted(str(key) for key in document if key not in ("services", "version", "name")):
        raise refused(f"services ({file.name}: {', '.join(extra)})")
    settings = services[service] or {}
    if not isinstance(settings, dict):
        raise TaskError(f"{file}: {service} is not a mapping of settings")
    for key, value in settings.items():
        if key not in _HARMLESS and not _is_harmless(key, value):
            raise refused(f"services ({file.name}: {key})")
    workdir = settings.get("working_dir")
    return None if workdir is None else str(workdir)


def _is_harmless(key: str, value: Any) -> bool:
    """Whether a setting asks for nothing that a sandbox lacks."""
    match key:
        case "build":
            context = value.get("context", ".") if isinstance(value, dict) else value
            keys = set(value) if isinstance(value, dict) else set()
            return str(context) in (".", "./") and keys <= {"context", "dockerfile"} and _own_dockerfile(value)
        case "environment":
            names = value if isinstance(value, dict) else [str(line).partition("=")[0] for line in value or []]
            return all(name == _TEST_DIR for name in names)
        case "volumes":  # the harness's own folders for logs
            return all(str(volume).startswith("${") and "LOGS_PATH" in str(volume) for volume in value or [])
        case "network_mode":
            return str(value) == "none"
        case "privileged":
            return value is False
        case "working_dir":
            return str(value).startswith("/")
    return False


def _own_dockerfile(value: Any) -> bool:
    return not isinstance(value, dict) or value.get("dockerfile", "Dockerfile") in ("Dockerfile", "./Dockerfile")
