"""The shipped families: distinct, reproducible, on disk as Harbor wants them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from agentrl.tasks.config import Family
from agentrl.tasks.families import FAMILIES, digest, write_tasks
from agentrl.tasks.families.files import TaskFiles
from agentrl.tasks.families.shell_basics import KINDS
from agentrl.tasks.folders import load_tasks


@pytest.mark.parametrize("family", FAMILIES)
def test_tasks_are_distinct_and_the_same_again(family: Family) -> None:
    tasks = FAMILIES[family](120, 7)
    assert len({task.name for task in tasks}) == 120
    assert len({digest([TaskFiles(name="", files=task.files)]) for task in tasks}) == 120
    assert FAMILIES[family](120, 7) == tasks
    assert FAMILIES[family](40, 7) == tasks[:40], "a larger count extends a smaller one"
    assert FAMILIES[family](120, 8) != tasks


@pytest.mark.parametrize("family", FAMILIES)
def test_more_than_there_are_is_said(family: Family) -> None:
    with pytest.raises(ValueError, match="at most"):
        FAMILIES[family](1_000_000, 0)


def test_every_family_of_the_configuration_is_there() -> None:
    assert set(FAMILIES) == set(Family) - {Family.none}


def test_shell_basics_goes_through_its_kinds_in_turn() -> None:
    names = [task.name for task in FAMILIES[Family.shell_basics](3 * len(KINDS), 0)]
    kinds = Counter(name.rpartition("-")[0] for name in names)
    assert len(KINDS) >= 20 and kinds == dict.fromkeys(KINDS, 3)
    assert "mkdir-002" in names


def test_instructions_are_short_and_end_with_what_must_be() -> None:
    for task in FAMILIES[Family.shell_basics](len(KINDS), 3):
        instruction = task.files["instruction.md"].strip()
        assert len(instruction) < 240 and "\n" not in instruction
        assert " At the end " in instruction and instruction.endswith(".")


def test_files_on_disk_are_the_same_byte_for_byte(tmp_path: Path) -> None:
    tasks = FAMILIES[Family.shell_basics](len(KINDS), 1)
    for out in ("one", "two"):
        write_tasks(tasks, tmp_path / out)
    paths = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*"))
    assert paths == sorted(path.relative_to(tmp_path / "two") for path in (tmp_path / "two").rglob("*"))
    for path in paths:
        one, two = tmp_path / "one" / path, tmp_path / "two" / path
        assert one.stat().st_mode == two.stat().st_mode
        assert one.is_dir() or one.read_bytes() == two.read_bytes()
    assert (tmp_path / "one" / "mkdir-000" / "tests" / "test.sh").stat().st_mode & 0o777 == 0o755
    assert [task.unknown_keys for task in load_tasks(tmp_path / "one")] == [()] * len(KINDS)


def test_an_existing_folder_is_not_written_to(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match="there already"):
        write_tasks([], tmp_path)
