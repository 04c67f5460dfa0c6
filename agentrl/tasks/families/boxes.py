"""The `boxes` family: read a note, then act on what it says. Small enough for a model of 0.1M parameters.

The working folder holds six boxes (files named by a colour, each with another digit) and a `note` that names one.
The answer is a copy of the named box. The instruction is the same in every task, so only reading the note helps:
guessing is right once in six.

`demonstrations` writes the dialogues of the tiny model's warm-up, with the observations that a sandbox gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from agentrl.tasks.families.files import TaskFiles

NAMES = ("red", "blue", "green", "gold", "pink", "grey")
"""Names of the boxes, the same in every task."""

INSTRUCTION = "copy the box named by note to answer"

NO_OUTPUT = "(no output)"
"""What the agent loop shows for a command that succeeds silently."""

Dialogue = list[tuple[str, str]]
"""(role, text) from the instruction to the last message of the assistant."""

_DOCKERFILE = """\
FROM debian:12-slim
WORKDIR /app
COPY files/ /app/
"""

_TASK_TOML = """\
version = "1.0"

[metadata]
family = "boxes"
difficulty = "easy"

[agent]
timeout_sec = 120.0

[verifier]
timeout_sec = 30.0

[environment]
network_mode = "no-network"
memory_mb = 128
"""

_TEST_SH = """\
#!/bin/sh
# 1 if /app/answer holds the digit of the box that the note names, else 0.
reward=0
if [ "$(cat /app/answer 2>/dev/null)" = "{digit}" ]; then
    reward=1
fi
mkdir -p /logs/verifier
echo "$reward" > /logs/verifier/reward.txt
"""

_SOLVE_SH = """\
#!/bin/sh
cd /app
cp "$(cat note)" answer
"""


@dataclass(frozen=True)
class Boxes:
    """One task's contents."""

    named: str
    """The box that the note names."""
    digits: tuple[int, ...]
    """Digit in each box, in the order of NAMES; all different, so that only the named box is right."""

    @property
    def answer(self) -> int:
        return self.digits[NAMES.index(self.named)]


def generate(count: int, seed: int) -> list[TaskFiles]:
    """`count` different tasks, the same for the same seed; a larger count extends a smaller one.

    Raises ValueError for more tasks than there are arrangements of digits.
    """
    if count > 100_000:
        raise ValueError(f"boxes: {count} tasks asked for, at most 100000 are different enough to draw quickly")
    rng = Random(f"boxes/{seed}")
    drawn: dict[Boxes, None] = {}
    while len(drawn) < count:
        drawn[Boxes(rng.choice(NAMES), tuple(rng.sample(range(10), len(NAMES))))] = None
    return [_files(f"boxes-{index:04d}", boxes) for index, boxes in enumerate(drawn)]


def demonstrations(rng: Random, count: int, *, hasty_share: float) -> list[Dialogue]:
    """`count` dialogues of a demonstrator who knows the commands but is often in a hurry.

    With probability `hasty_share` it copies any box at once, else it reads the note and copies the named one. So a
    model that imitates it can act on a note that it has read, and usually does not read it.
    """
    return [_demonstration(rng, hasty=rng.random() < hasty_share) for _ in range(count)]


def _demonstration(rng: Random, *, hasty: bool) -> Dialogue:
    box = rng.choice(NAMES)
    copy_and_end: Dialogue = [("assistant", f"cp {box} answer"), ("user", NO_OUTPUT), ("assistant", "done")]
    read: Dialogue = [] if hasty else [("assistant", "cat note"), ("user", box)]
    return [("user", INSTRUCTION), *read, *copy_and_end]


def _files(name: str, boxes: Boxes) -> TaskFiles:
    contents = {box: f"{digit}\n" for box, digit in zip(NAMES, boxes.digits, strict=True)}
    contents["note"] = f"{boxes.named}\n"
    return TaskFiles(
        name=name,
        files={
            "instruction.md": f"{INSTRUCTION}\n",
            "task.toml": _TASK_TOML,
            "environment/Dockerfile": _DOCKERFILE,
            **{f"environment/files/{path}": text for path, text in contents.items()},
            "tests/test.sh": _TEST_SH.format(digit=boxes.answer),
            "solution/solve.sh": _SOLVE_SH,
        },
    )
