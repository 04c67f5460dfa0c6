"""A shell task before it is a folder: what lies there, what is asked, how it is done, how it is checked."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

from agentrl.tasks.families.files import TaskFiles

_TASK_TOML = """\
version = "1.0"

[metadata]
family = "shell_basics"
kind = "{kind}"
difficulty = "easy"

[agent]
timeout_sec = 120.0

[verifier]
timeout_sec = 30.0

[environment]
network_mode = "no-network"
memory_mb = 256
"""

_TEST_SH = """\
#!/bin/sh
# Writes 1 if every condition holds in the working folder, else 0.
holds() {{
    cd /app &&
        {conditions}
}}
reward=0
if holds >/dev/null 2>&1; then
    reward=1
fi
mkdir -p /logs/verifier
echo "$reward" > /logs/verifier/reward.txt
"""

_SOLVE_SH = """\
#!/bin/sh
set -e
cd /app
{commands}
"""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One task, in the working folder /app."""

    ask: str
    """What to do, as a sentence."""
    result: str
    """What must then be, to follow "At the end"."""
    solve: str
    """Shell commands that do it."""
    checks: tuple[str, ...]
    """Shell conditions, all of which hold exactly when it is done."""
    files: dict[str, str] = field(default_factory=dict)
    """Path in /app -> content at the start."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables of the environment."""


def has_text(path: str, text: str) -> str:
    """The condition that a file's content is `text`; newlines at its end do not count."""
    return f'[ -f {shlex.quote(path)} ] && [ "$(cat {shlex.quote(path)})" = {shlex.quote(text.rstrip())} ]'


def task_files(name: str, kind: str, scene: Scene) -> TaskFiles:
    """The task folder of a scene."""
    dockerfile = ["FROM debian:12-slim", "WORKDIR /app"]
    dockerfile += [f"ENV {key}={shlex.quote(value)}" for key, value in scene.env.items()]
    dockerfile += ["COPY files/ /app/"] if scene.files else []
    return TaskFiles(
        name=name,
        files={
            "instruction.md": f"{scene.ask} At the end {scene.result}.\n",
            "task.toml": _TASK_TOML.format(kind=kind),
            "environment/Dockerfile": "\n".join(dockerfile) + "\n",
            **{f"environment/files/{path}": content for path, content in scene.files.items()},
            "tests/test.sh": _TEST_SH.format(conditions=" &&\n        ".join(scene.checks)),
            "solution/solve.sh": _SOLVE_SH.format(commands=scene.solve),
        },
    )
