"""The tasks of a run: generated or loaded, filtered, split into those that train and those that are held out."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from agentrl.errors import ImageError, TaskError, UserError
from agentrl.sandbox.bare.places import folders_of, misfit
from agentrl.sandbox.config import Isolation, SandboxConfig
from agentrl.tasks.config import Family, TasksConfig
from agentrl.tasks.containers import chosen_image, in_container
from agentrl.tasks.families import FAMILIES, digest, write_tasks
from agentrl.tasks.families.files import TaskFiles
from agentrl.tasks.folders import Skipped, load_task, scan_tasks
from agentrl.tasks.task import Task

_FIRST_LOOK = 256
"""Tasks that a family makes before a pattern counts as matching nothing."""
_MOST = 16_384
"""Tasks that a family makes in search of enough that match."""


@dataclass(frozen=True)
class Dataset:
    """No task is in both."""

    train: tuple[Task, ...]
    heldout: tuple[Task, ...]
    skipped: tuple[Skipped, ...] = ()
    """Folders that cannot run here, with the reason."""


def load_dataset(config: TasksConfig, *, workspace: Path, sandbox: SandboxConfig | None = None) -> Dataset:
    """The tasks that `config` names. Generated ones are written under `workspace`, once.

    Where `sandbox` runs containers, each task's image is named; those whose image nobody can name are left out.

    Raises UserError: no such path, no task in it, a task that is wrong, none that matches, fewer than asked for.
    """
    try:
        containers = sandbox is not None and sandbox.backend.runs_containers
        load = _load_path if config.family is Family.none else _load_family
        dataset = load(config, workspace, containers)
        return _in_containers(dataset, sandbox) if sandbox is not None and containers else dataset
    except TaskError as error:
        raise UserError(error.message, hint=error.hint) from error


def without_builds(dataset: Dataset) -> Dataset:
    """Without the tasks whose image has to be built, for providers that cannot. Raises UserError if none is left."""
    reason = "its image has to be built, which the sandboxes of this machine cannot (`agentrl doctor` says why)"
    return _without(dataset, lambda task: reason if task.spec.image.steps else None)


def without_isolation(dataset: Dataset, left: Collection[str] = ()) -> Dataset:
    """Without the tasks that need isolation, or a folder that this machine has. Raises UserError if none is left.

    `left`: folders that an earlier sandbox made, soon to be removed.
    """

    def obstacle(task: Task) -> str | None:
        try:
            folders_of(task.spec.image, left=left)
        except ImageError as error:
            return str(error)
        return misfit(task.spec.image, task.agent_user, task.verifier_user)

    return _without(dataset, obstacle)


def within_limits(dataset: Dataset, limits: SandboxConfig) -> Dataset:
    """Without the tasks that ask for more than a sandbox gets. Raises UserError if none is left."""
    needed = limits_needed((*dataset.train, *dataset.heldout), limits)
    raised = " and ".join(f"set {key} to {wanted}" for key, wanted in needed.items())
    return _without(dataset, lambda task: over_limits(task, limits), remedy=raised)


def limits_needed(tasks: Iterable[Task], limits: SandboxConfig) -> dict[str, int]:
    """Settings of the sandbox that are too low for one of the tasks, with the least value that does for all."""
    if limits.isolation is Isolation.none:
        return {}
    needed: dict[str, int] = {}
    for task in tasks:
        asked = (("memory_mb", task.spec.memory_mb, limits.memory_mb), ("disk_mb", task.spec.disk_mb, limits.disk_mb))
        for name, wanted, most in asked:
            if (wanted or 0) > most:
                needed[f"sandbox.{name}"] = max(wanted or 0, needed.get(f"sandbox.{name}", 0))
    return needed


def over_limits(task: Task, limits: SandboxConfig) -> str | None:
    """What a task asks for beyond the limits of a sandbox, None if it keeps within them.

    With less than it asks for, a good agent would fail for want of memory or disk, and be blamed for it. Without
    isolation there are no limits.
    """
    most = {"sandbox.memory_mb": limits.memory_mb, "sandbox.disk_mb": limits.disk_mb}
    over = [
        f"{key.removeprefix('sandbox.')} {wanted} ({key} is {most[key]})"
        for key, wanted in limits_needed([task], limits).items()
    ]
    return f"asks for {' and '.join(over)}" if over else None


def _in_containers(dataset: Dataset, sandbox: SandboxConfig) -> Dataset:
    reason = "its image has to be built, and sandbox.kubernetes.registry does not say where to"
    remedy = "set sandbox.kubernetes.registry; `agentrl tasks images` builds what is there"
    able = _without(dataset, lambda task: None if chosen_image(task, sandbox) else reason, remedy=remedy)
    train, heldout = (tuple(in_container(task, sandbox) for task in tasks) for tasks in (able.train, able.heldout))
    return Dataset(train, heldout, able.skipped)


def _without(dataset: Dataset, why_not: Callable[[Task], str | None], *, remedy: str = "") -> Dataset:
    found = {task.name: why_not(task) for task in (*dataset.train, *dataset.heldout)}
    skipped = [
        Skipped(task.folder, reason) for task in (*dataset.train, *dataset.heldout) if (reason := found[task.name])
    ]
    train, heldout = (
        tuple(task for task in tasks if found[task.name] is None) for tasks in (dataset.train, dataset.heldout)
    )
    if not train:
        raise _none_left(len(dataset.train), heldout, skipped, remedy)
    return Dataset(train, heldout, (*dataset.skipped, *skipped))


def _none_left(num_train: int, heldout: tuple[Task, ...], skipped: list[Skipped], remedy: str) -> UserError:
    """No task is left for training: what is, and what to do."""
    first = f"the first {skipped[0].reason}"
    if not heldout:
        return UserError(f"tasks: none can run here: {first}", hint=remedy or None)
    lower = "lower tasks.num_heldout"
    return UserError(
        f"tasks: none is left to train on: none of the {num_train} for training can run here, {len(heldout)} that are"
        f" held out can; {first}",
        hint=f"{remedy}, or {lower}" if remedy else lower,
    )


def _load_family(config: TasksConfig, workspace: Path, containers: bool) -> Dataset:
    if config.path is not None:
        raise UserError(f"tasks.path is set, and so is tasks.family {config.family.value}", hint="leave one out")
    if config.offline:
        raise UserError("tasks.offline is set, but shipped tasks use no network", hint="leave it out")
    chosen = _generate(config, config.num_train + config.num_heldout)
    folder = workspace / f"{config.family.value}-{digest(chosen)}"
    if not folder.exists():
        write_tasks(chosen, folder)
    tasks = tuple(load_task(folder / files.name, containers=containers) for files in chosen)
    return Dataset(tasks[: config.num_train], tasks[config.num_train :])


def _generate(config: TasksConfig, asked: int) -> list[TaskFiles]:
    """The first `asked` tasks of the family that match `include`."""
    generate = FAMILIES[config.family]
    count = asked if config.include == ["*"] else max(asked, _FIRST_LOOK)
    while True:
        try:
            made = generate(count, config.seed)
        except ValueError as error:
            raise UserError(f"tasks.num_train: {error}", hint="lower tasks.num_train or tasks.num_heldout") from error
        chosen = [task for task in made if _included(task.name, config.include)]
        if not chosen:
            raise _none_matches(config.include, [task.name for task in made])
        if len(chosen) >= asked:
            return chosen[:asked]
        if count >= _MOST:
            raise UserError(
                f"tasks.include: only {len(chosen)} tasks of {config.family.value} match, {asked} are asked for",
                hint="widen the patterns, or lower tasks.num_train or tasks.num_heldout",
            )
        count = min(4 * count, _MOST)


def _load_path(config: TasksConfig, workspace: Path, containers: bool) -> Dataset:
    if config.path is None:
        raise UserError("tasks: neither a family nor a path is set", hint="set tasks.family or tasks.path")
    path = Path(config.path)
    if not path.is_dir():
        raise UserError(f"tasks.path: {path}: no such folder", hint=_similar(path))
    tasks, skipped = scan_tasks(path, offline=config.offline, containers=containers)
    if not tasks:
        raise UserError(f"tasks.path: {path}: none of its tasks can run here", hint=f"first: {skipped[0].reason}")
    chosen = [task for task in tasks if _included(task.name, config.include)]
    if not chosen:
        raise _none_matches(config.include, [task.name for task in tasks])
    if len(chosen) <= config.num_heldout:
        raise UserError(
            f"tasks.path: {path}: {len(chosen)} tasks, of which tasks.num_heldout takes {config.num_heldout}",
            hint="add tasks or lower tasks.num_heldout",
        )
    Random(f"tasks/{config.seed}").shuffle(chosen)
    split = len(chosen) - config.num_heldout
    return Dataset(tuple(chosen[:split]), tuple(chosen[split:]), tuple(skipped))


def _included(name: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _none_matches(patterns: list[str], names: list[str]) -> UserError:
    near = difflib.get_close_matches(patterns[0] if patterns else "", names, n=1, cutoff=0.3)
    return UserError(
        f"tasks.include: no task matches {', '.join(patterns) or 'an empty list'}",
        hint=f"a task is named {near[0] if near else names[0]}",
    )


def _similar(path: Path) -> str | None:
    if not path.parent.is_dir():
        return None
    near = difflib.get_close_matches(path.name, [p.name for p in path.parent.iterdir() if p.is_dir()], n=1)
    return f"did you mean {path.parent / near[0]}?" if near else None
