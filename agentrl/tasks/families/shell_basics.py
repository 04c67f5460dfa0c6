"""The `shell_basics` family: what a shell user does all day, one thing per task.

Each kind is a function from a random generator to a scene; tasks go through the kinds in turn, so any run of them is
balanced. Doing nothing never scores: what must exist does not exist at the start.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from agentrl.tasks.families import shell_files, shell_text
from agentrl.tasks.families.files import TaskFiles
from agentrl.tasks.families.scene import Scene, task_files

Kind = Callable[[Random], Scene]

KINDS: dict[str, Kind] = {
    "mkdir": shell_files.mkdir,
    "rename": shell_files.rename,
    "copy": shell_files.copy,
    "write": shell_text.write,
    "touch": shell_files.touch,
    "delete": shell_files.delete,
    "move": shell_files.move_into,
    "mkdir-nested": shell_files.nested_mkdir,
    "append": shell_text.append,
    "sort": shell_text.sort,
    "count-lines": shell_text.count_lines,
    "grep": shell_text.grep,
    "head": shell_text.head,
    "tail": shell_text.tail,
    "unique": shell_text.unique,
    "replace": shell_text.replace,
    "chmod": shell_files.chmod,
    "concatenate": shell_text.concatenate,
    "symlink": shell_files.symlink,
    "find": shell_text.find,
    "gather": shell_files.gather,
    "count-words": shell_text.count_words,
    "size": shell_text.size,
    "tar-create": shell_files.tar_create,
    "tar-extract": shell_files.tar_extract,
    "environment": shell_text.environment,
    "csv-column": shell_text.csv_column,
    "uppercase": shell_text.uppercase,
    "reverse": shell_text.reverse,
}
"""Kind -> its scene, in the order in which tasks go through them."""


_MOST = 16_384


def generate(count: int, seed: int) -> list[TaskFiles]:
    """`count` different tasks named like mkdir-003; a larger count extends a smaller one of the same seed.

    Raises ValueError for more than there are words for.
    """
    if count > _MOST:
        raise ValueError(f"shell_basics: {count} tasks asked for, at most {_MOST} are different enough to draw quickly")
    rngs = {kind: Random(f"shell_basics/{kind}/{seed}") for kind in KINDS}
    seen: set[str] = set()
    tasks: list[TaskFiles] = []
    kinds = list(KINDS)
    for index in range(count):
        kind = kinds[index % len(kinds)]
        scene = KINDS[kind](rngs[kind])
        while repr(scene) in seen:
            scene = KINDS[kind](rngs[kind])
        seen.add(repr(scene))
        tasks.append(task_files(f"{kind}-{index // len(kinds):03d}", kind, scene))
    return tasks
