"""Which tasks are evaluated on: a run's own, those of a shipped family, or all in a folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from agentrl.config.schema import JobConfig
from agentrl.errors import UserError
from agentrl.sandbox.config import Isolation
from agentrl.tasks.config import Family, TasksConfig
from agentrl.tasks.dataset import load_dataset, within_limits, without_isolation
from agentrl.tasks.task import Task

HELDOUT, TRAIN = "heldout", "train"


@dataclass(frozen=True, kw_only=True)
class TaskChoice:
    """A data set, and which part of it."""

    tasks: TasksConfig
    train: bool
    """The part that a run would train on; else the held-out one."""


def choose(tasks: TasksConfig, name: str, *, include: list[str] | None) -> TaskChoice:
    """`heldout` or `train` of `tasks`, the held-out ones of a family, or every task in a folder.

    `include`: patterns for a folder; None: all. Raises UserError.
    """
    own = replace(tasks, branch_from=None)
    if name in (HELDOUT, TRAIN):
        return TaskChoice(tasks=own, train=name == TRAIN)
    families = {family.value: family for family in Family if family is not Family.none}
    if (family := families.get(name.replace("-", "_"))) is not None:
        return TaskChoice(tasks=replace(own, family=family, path=None, offline=False), train=False)
    if not Path(name).is_dir():
        known = ", ".join((HELDOUT, TRAIN, *families))
        raise UserError(f"--tasks: {name} is no folder", hint=f"give a folder of tasks, or one of {known}")
    path = str(Path(name).absolute())
    folder = replace(own, family=Family.none, path=path, num_heldout=0, include=["*"] if include is None else include)
    return TaskChoice(tasks=folder, train=True)


def chosen_tasks(config: JobConfig, choice: TaskChoice, workspace: Path) -> tuple[Task, ...]:
    """Those that can run here. Generated ones are written under `workspace`. Raises UserError if there are none."""
    dataset = within_limits(load_dataset(choice.tasks, workspace=workspace, sandbox=config.sandbox), config.sandbox)
    if config.sandbox.isolation is Isolation.none:
        dataset = without_isolation(dataset)
    found = dataset.train if choice.train else dataset.heldout
    if not found:
        raise UserError("--tasks: no task is held out", hint="--tasks train, a folder, or tasks.num_heldout=32")
    return found
