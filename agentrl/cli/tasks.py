"""`agentrl tasks`: check task folders, write a shipped family to disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentrl.cli.arguments import given

if TYPE_CHECKING:
    from agentrl.sandbox.config import SandboxConfig
    from agentrl.tasks.check import CheckResult
    from agentrl.tasks.config import Family
    from agentrl.tasks.folders import Skipped
    from agentrl.tasks.task import Task

app = typer.Typer(help="Check task folders, and write shipped tasks to disk.", no_args_is_help=True)

_MEMORY_MB, _DISK_MB = 2048, 1024
"""Ceilings of the sandboxes that tasks are checked in: what public sets usually ask for. A run has its own."""

JobsOption = Annotated[int, typer.Option("--jobs", "-j", min=1, max=64, help="Tasks checked at once.")]
CountOption = Annotated[int, typer.Option("--count", min=1, help="Tasks of the family.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of the family.")]


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="tasks")


@app.command()
def check(
    ctx: typer.Context,
    path_or_family: Annotated[str, typer.Argument(metavar="PATH|FAMILY", help="A folder of tasks, or a family.")],
    *,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    jobs: JobsOption = 2,
    count: CountOption = 64,
    seed: SeedOption = 0,
) -> None:
    """Check that each task's own solution scores 1 and doing nothing scores 0. Exits with 1 if one fails."""
    import asyncio
    import tempfile

    from agentrl.errors import UserError

    if Path(path_or_family).is_dir() and (unused := {"count", "seed"} & given(ctx)):
        options = " and ".join(f"--{name}" for name in sorted(unused))
        raise UserError(f"{path_or_family} is a folder, and {options} is of a family", hint="leave it out")
    with tempfile.TemporaryDirectory(prefix="agentrl-check-") as scratch:
        tasks, untried = _find(path_or_family, count, seed, Path(scratch) / "tasks")
        checked = asyncio.run(_check(tasks, jobs, Path(scratch) / "sandboxes", quiet=json_)) if tasks else []
        results = [*checked, *untried]
    if json_:
        _print_json(results)
    else:
        _print_table(results)
    if not any(result.runnable for result in results) or any(result.failed for result in results):
        raise typer.Exit(1)


@app.command()
def generate(
    family: Annotated[str, typer.Argument(help="The family.")],
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to make; one folder per task goes in it.")],
    count: CountOption = 64,
    seed: SeedOption = 0,
) -> None:
    """Write tasks of a shipped family to a new folder. The same seed gives the same bytes."""
    from agentrl.errors import UserError
    from agentrl.tasks.families import FAMILIES, write_tasks

    try:
        write_tasks(FAMILIES[_family(family)](count, seed), out)
    except OSError as error:
        problem = f"{out}: cannot be written: {error.strerror}" if error.strerror else str(error)
        raise UserError(problem, hint="give a folder that does not exist, where you may write") from error
    except ValueError as error:
        raise UserError(str(error)) from error
    print(f"{count} tasks in {out}")


@app.command()
def images(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A folder of tasks.")],
    *,
    registry: Annotated[
        str | None, typer.Option("--registry", help="Where built images go, sandbox.kubernetes.registry.")
    ] = None,
    builder: Annotated[str, typer.Option("--builder", help="What builds an image.")] = "docker build",
    run: Annotated[bool, typer.Option("--run", help="Build what has to be built, one after another.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the container images that tasks run in on Kubernetes, and the commands that build those of a Dockerfile.

    A built image is named by what it is built of. Push what was built to where the cluster pulls from.
    """
    import json
    import shlex
    import subprocess

    from agentrl.errors import UserError
    from agentrl.sandbox.config import SandboxConfig
    from agentrl.sandbox.pods.config import PodConfig
    from agentrl.tasks.containers import chosen_image, images_of
    from agentrl.tasks.folders import scan_tasks

    tasks, skipped = scan_tasks(path, offline=True, containers=True)
    config = SandboxConfig(kubernetes=PodConfig(registry=registry))
    unnamed = [task.name for task in tasks if chosen_image(task, config) is None]
    if run and unnamed:
        raise UserError(f"the images of {len(unnamed)} tasks have no name to be built under", hint="give --registry")
    found = images_of(tasks, config)
    commands = {image.name: image.build_command(builder) for image in found if image.context is not None}
    if json_:
        rows: list[dict[str, Any]] = [
            {"image": one.name, "tasks": one.tasks, "build": commands.get(one.name)} for one in found
        ]
        rows += [{"image": None, "tasks": [name], "build": None} for name in unnamed]
        print(json.dumps(rows, indent=1))
    else:
        for image in found:
            more = f" and {len(image.tasks) - 1} more" if len(image.tasks) > 1 else ""
            print(f"{image.name}  # {image.tasks[0]}{more}")
            if image.name in commands:
                print(f"  {shlex.join(commands[image.name])}")
        for name in unnamed:
            print(f"# {name} has to be built: --registry says under which name")
        for left in skipped:
            print(f"# {left.folder.name} is left out: {left.reason}")
    for command in commands.values() if run else ():
        if (code := subprocess.run(command, check=False).returncode) != 0:
            raise UserError(f"{shlex.join(command)}: ended with {code}", hint="its output is above")


def _find(name: str, count: int, seed: int, scratch: Path) -> tuple[list[Task], list[CheckResult]]:
    """A folder's tasks, or those of a family, written to `scratch`; and the results of those that cannot be tried."""
    from agentrl.errors import TaskError, UserError
    from agentrl.tasks.check import malformed_result, skipped_result
    from agentrl.tasks.families import FAMILIES, write_tasks
    from agentrl.tasks.folders import scan_tasks

    folder = Path(name)
    if not folder.is_dir():
        write_tasks(FAMILIES[_family(name)](count, seed), scratch)
        folder = scratch
    malformed: list[Skipped] = []
    try:
        tasks, skipped = scan_tasks(folder, malformed=malformed, offline=True)
    except TaskError as error:
        raise UserError(error.message, hint=error.hint) from error
    return tasks, [*map(malformed_result, malformed), *map(skipped_result, skipped)]


def _family(name: str) -> Family:
    from agentrl.errors import UserError
    from agentrl.tasks.families import FAMILIES

    known = {family.value: family for family in FAMILIES}
    found = known.get(name.replace("-", "_"))
    if found is None:
        raise UserError(f"{name}: neither a folder nor a family of tasks", hint=f"families: {', '.join(known)}")
    return found


async def _check(tasks: list[Task], jobs: int, state_dir: Path, *, quiet: bool) -> list[CheckResult]:
    from agentrl.sandbox.bubblewrap import BubblewrapProvider
    from agentrl.sandbox.config import SandboxConfig
    from agentrl.tasks.check import check_tasks

    limits = SandboxConfig(memory_mb=_MEMORY_MB, disk_mb=_DISK_MB)
    tasks = [replace(task, notes=(*task.notes, *_run_notes(task, limits))) for task in tasks]
    provider = BubblewrapProvider(limits, state_dir=state_dir)
    try:
        with _progress(len(tasks), quiet=quiet) as advance:
            return await check_tasks(tasks, provider, jobs, on_result=lambda _: advance())
    finally:
        await provider.close()


def _run_notes(task: Task, limits: SandboxConfig) -> list[str]:
    """What its check lacks for want of such sandboxes, and what a run with the default settings leaves it out for."""
    from agentrl.sandbox.config import SandboxConfig
    from agentrl.tasks.dataset import limits_needed, over_limits
    from agentrl.tasks.harbor import WITHOUT_NETWORK

    wanted = [f"{key} is {least} or more" for key, least in limits_needed([task], SandboxConfig()).items()]
    if any(WITHOUT_NETWORK in note for note in task.notes):
        wanted.append("tasks.offline=true")
    over = over_limits(task, limits)
    return [*([over] if over else []), *([f"left out of a run unless {' and '.join(wanted)}"] if wanted else [])]


@contextmanager
def _progress(total: int, *, quiet: bool) -> Iterator[Callable[[], None]]:
    """A bar on stderr while the block runs, where that is a terminal; yields what moves it on."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True, markup=False)
    with Progress(console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        bar = progress.add_task("checking", total=total)
        yield lambda: progress.advance(bar)


def _print_json(results: list[CheckResult]) -> None:
    import json
    from dataclasses import asdict

    print(json.dumps([asdict(result) for result in results], indent=1))


def _print_table(results: list[CheckResult]) -> None:
    from agentrl.cli.table import Column, print_table

    rows = []
    for result in results:
        status = "ok" if result.passed else f"{'failed' if result.failed else 'skipped'}: {result.reason}"
        shown = "\n".join([status, *(f"note: {note}" for note in result.notes)])
        rows.append((result.task, _score(result.oracle), _score(result.noop), shown))
    print_table([Column("task"), Column("oracle"), Column("no-op"), Column("result", folds=True)], rows)
    passed = sum(result.passed for result in results)
    failed = sum(result.failed for result in results)
    print(f"{passed} ok, {failed} failed, {len(results) - passed - failed} skipped")


def _score(reward: float | None) -> str:
    return "-" if reward is None else f"{reward:g}"
