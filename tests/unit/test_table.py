"""Tables on stdout: whole rows where a program reads them, whole ids wherever they are shown."""

from __future__ import annotations

import re

import pytest

from agentrl.cli.table import Column, columns_that_fit, print_table

COLUMNS = [
    Column("episode"),
    Column("task", folds=True),
    Column("verdict"),
    Column("turns", number=True, spare=True),
    Column("seconds", number=True, spare=True),
]
ROWS = [
    [f"g00000{n}.m001.a00", f"a-task-with-quite-a-long-name-{n}/of-a-set", "model_failure", "12", "104.5"]
    for n in range(3)
]


def test_a_pipe_gets_each_row_as_one_line_with_every_column(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, [*ROWS, ["[/tmp]", "two\nlines " + "x" * 300, "success", "1", "2"]])
    lines = capsys.readouterr().out.splitlines()
    for row in ROWS:
        assert [line.split() for line in lines if row[0] in line] == [row]
    assert [line.split()[:3] for line in lines if "[/tmp]" in line] == [["[/tmp]", "two;", "lines"]]


@pytest.mark.parametrize("width", [20, 60, 70, 80, 200])
def test_a_terminal_never_splits_an_id_or_a_verdict(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    print_table(COLUMNS, ROWS)
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    for row in ROWS:
        assert sum(row[0] in line and row[2] in line for line in out.splitlines()) == 1
    if width >= 60:
        assert max(map(len, out.splitlines())) <= width
    if width == 200:
        assert all(" ".join(row) in " ".join(out.split()) for row in ROWS)


def test_spare_columns_go_from_the_right_as_the_terminal_narrows() -> None:
    shown = [len(columns_that_fit(COLUMNS, ROWS, cells)) for cells in (10, 60, 70, 80)]
    assert shown == [3, 3, 4, 5]
