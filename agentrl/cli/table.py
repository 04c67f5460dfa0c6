"""Tables on stdout: one row a line where a program reads them; on a terminal as narrow as they can be made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

_FOLDED_CELLS = 20
"""Least width of a column that folds."""


@dataclass(frozen=True)
class Column:
    """A column; unless said otherwise, a narrow terminal neither folds nor drops it (ids, verdicts)."""

    title: str
    number: bool = False
    """Aligned to the right."""
    folds: bool = False
    """A narrow terminal shows its text in several lines."""
    spare: bool = False
    """A narrow terminal goes without it; the last such column goes first."""


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, title: str = "") -> None:
    """Print on stdout. Nothing is ever cut off; what is no terminal gets every column, and each row as one line."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Text of users (paths, names) must not be read as markup: "[/tmp]" would raise and "[red]" would vanish.
    console = Console(markup=False, highlight=False, emoji=False, soft_wrap=True)
    if not console.is_terminal:
        columns = [replace(column, folds=False, spare=False) for column in columns]
        rows = [["; ".join(cell.splitlines()) for cell in row] for row in rows]
    shown = columns_that_fit(columns, rows, console.width)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in (columns[index] for index in shown):
        justify = "right" if column.number else "left"
        least = _FOLDED_CELLS if column.folds else None
        table.add_column(column.title, justify=justify, no_wrap=not column.folds, overflow="fold", min_width=least)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(Text(row[index]) for index in shown))
    console.width = max(console.width, _table_cells([columns[index] for index in shown], rows, shown))
    if title:
        console.print(title)
    console.print(table)


def columns_that_fit(columns: Sequence[Column], rows: Sequence[Sequence[str]], cells: int) -> list[int]:
    """Positions of the columns that a terminal of so many cells shows: all, or fewer of the spare ones."""
    shown = list(range(len(columns)))
    for index in reversed([index for index in shown if columns[index].spare]):
        if _table_cells([columns[index] for index in shown], rows, shown) <= cells:
            break
        shown.remove(index)
    return shown


def _table_cells(columns: Sequence[Column], rows: Sequence[Sequence[str]], shown: Sequence[int]) -> int:
    """Least width of a table: columns that fold are as narrow as they may be."""
    return sum(_cells(column, [row[index] for row in rows]) + 3 for column, index in zip(columns, shown, strict=True))


def _cells(column: Column, texts: Sequence[str]) -> int:
    from rich.cells import cell_len

    widest = max(cell_len(line) for text in (column.title, *texts) for line in text.splitlines() or [""])
    return max(min(widest, _FOLDED_CELLS), cell_len(column.title)) if column.folds else widest
