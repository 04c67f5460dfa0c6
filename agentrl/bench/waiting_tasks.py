"""Tasks whose commands really wait: the `boxes` family, where every command first sleeps as long as its task says.

The waits are what makes collecting hard: most commands are quick, some hold their episode up for long. They are drawn
per task and command from the slow part of W-TB's tool latencies, scaled down so that a benchmark takes minutes.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from agentrl.simulation.laws import LogNormal, Mixture, Pareto, Part
from agentrl.tasks.families import boxes, write_tasks
from agentrl.tasks.families.files import TaskFiles

SCALE = 0.5
WAIT_S = Mixture(
    parts=(
        Part(weight=0.37, of=LogNormal(median=3 * SCALE, sigma=1.2)),
        Part(weight=0.03, of=Pareto(minimum=30 * SCALE, alpha=1.1)),
    ),
    cap=50 * SCALE,
)
"""Of one command, in seconds."""
_COMMANDS = 4
"""Commands of a task that wait; an agent of three turns runs at most two or three."""
_ENVIRONMENT = "ENV BASH_ENV=/app/.wait.sh\n"
"""bash reads this file before it runs a command, as the agent's commands are run."""
_WAIT_SH = """\
# Sleeps as long as the line of /app/.waits says whose number is that of this command.
number=0
[ -e /tmp/.commands ] && read -r number < /tmp/.commands
echo $((number + 1)) > /tmp/.commands
mapfile -t waits < /app/.waits
[ -n "${waits[number]}" ] && sleep "${waits[number]}"
"""


def waits(name: str, seed: int) -> tuple[float, ...]:
    """Seconds that the commands of a task wait, by their number."""
    random = Random(f"waits/{seed}/{name}")
    return tuple(round(WAIT_S.sample(random), 3) for _ in range(_COMMANDS))


def write(folder: Path, *, count: int, seed: int) -> None:
    """Write so many tasks to a folder that does not exist. The same seed gives the same bytes."""
    write_tasks([_waiting(task, seed) for task in boxes.generate(count, seed)], folder)


def _waiting(task: TaskFiles, seed: int) -> TaskFiles:
    lines = "".join(f"{wait}\n" for wait in waits(task.name, seed))
    files = {
        **task.files,
        "environment/Dockerfile": task.files["environment/Dockerfile"] + _ENVIRONMENT,
        "environment/files/.waits": lines,
        "environment/files/.wait.sh": _WAIT_SH,
    }
    return TaskFiles(name=task.name, files=files)
