"""What the commands that simulate share: choosing laws, seeds and processes, a progress bar, a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from agentrl.config.schema import JobConfig
    from agentrl.simulation.config import Hardware, Workload


def complete_laws(group: str) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        from agentrl.config.catalog import PACKAGED

        return sorted(file.stem for file in (PACKAGED / group).glob("*.yaml") if file.stem.startswith(incomplete))

    return complete


LawsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Laws to change: turns.sigma=0.5, engine.kv_tokens=300000."),
]
WorkloadOption = Annotated[
    str | None,
    typer.Option(
        "--workload",
        "-w",
        metavar="NAME|FILE",
        help="What agents do: packaged laws, or a YAML file of your own.",
        autocompletion=complete_laws("workload"),
    ),
]
HardwareOption = Annotated[
    str | None,
    typer.Option(
        "--hardware",
        metavar="NAME|FILE",
        help="The machines: packaged laws, or a YAML file. Default: what the workload names.",
        autocompletion=complete_laws("hardware"),
    ),
]
SeedsOption = Annotated[int, typer.Option("--seeds", min=1, help="Seeds 0 to N - 1, the same for everything compared.")]
JobsOption = Annotated[
    int | None,
    typer.Option("--jobs", "-j", min=1, help="Simulations at once. Default: one a core.", show_default=False),
]


def load_laws(workload: str, hardware: str | None, changes: Sequence[str]) -> tuple[Workload, Hardware, str]:
    """The laws, with changes such as `turns.sigma=0.5`, and the hardware's name. Raises UserError."""
    from agentrl.simulation.config import load_hardware, load_workload, split_changes

    of_workload, of_hardware = split_changes(changes)
    chosen = load_workload(workload, of_workload)
    name = hardware or chosen.hardware
    return chosen, load_hardware(name, of_hardware), name


@dataclass(frozen=True)
class ChosenLaws:
    """Laws and where they come from."""

    workload: Workload
    hardware: Hardware
    workload_name: str
    hardware_name: str
    why: str
    """` (...)` where nobody chose them."""


def laws_of_job(config: JobConfig, workload: str | None, hardware: str | None) -> ChosenLaws:
    """The laws that were asked for, or the usual ones of such a job. Raises UserError."""
    from agentrl.simulation.job import usual_workload

    usual, reason = usual_workload(config)
    chosen, machine, name = load_laws(workload or usual, hardware, [])
    return ChosenLaws(chosen, machine, workload or usual, name, why="" if workload else f" ({reason})")


def load_job(file: Path, overrides: Sequence[str]) -> JobConfig:
    """The job to simulate; what a launch would refuse is refused here. Model and tasks need not be there.

    Raises UserError.
    """
    from agentrl.config.compose import load
    from agentrl.config.lint import lint, raise_on_errors

    config = load(file, overrides).config
    raise_on_errors(lint(config))
    return config


@contextmanager
def progress(total: int, what: str) -> Iterator[Callable[[], None]]:
    """A bar on stderr while the block runs, where that is a terminal; yields what moves it on."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    console = Console(stderr=True, markup=False)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "", text_last: bool = False
) -> None:
    """A table on stdout. The first column is text, the others are numbers; `text_last`: the last one is text too."""
    from agentrl.cli import table

    last = len(columns) - 1
    kinds = [
        table.Column(
            column, number=0 < index < last or (index == last and not text_last), folds=text_last and index == last
        )
        for index, column in enumerate(columns)
    ]
    table.print_table(kinds, rows, title=title)
