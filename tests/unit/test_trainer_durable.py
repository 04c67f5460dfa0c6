"""Folders appear whole or not at all, and old ones go."""

from __future__ import annotations

from pathlib import Path

from agentrl.trainer import durable


def _write(final: Path, text: str) -> None:
    (durable.fresh(durable.temporary(final)) / "file").write_text(text)
    durable.commit(final)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_nothing_is_listed_before_it_is_committed(tmp_path: Path) -> None:
    final = tmp_path / "step-000001"
    (durable.fresh(durable.temporary(final)) / "file").write_text("half")
    assert durable.complete(tmp_path, "step-") == []
    assert durable.newest(tmp_path, "step-") is None
    durable.commit(final)
    assert durable.newest(tmp_path, "step-") == final
    assert _names(tmp_path) == ["step-000001"]


def test_what_a_killed_writer_left_is_not_mixed_in(tmp_path: Path) -> None:
    final = tmp_path / "v000001"
    (durable.fresh(durable.temporary(final)) / "leftover").write_text("old")
    _write(final, "new")
    assert _names(final) == ["file"]


def test_a_repeated_step_replaces_its_folder(tmp_path: Path) -> None:
    final = tmp_path / "v000001"
    _write(final, "old")
    _write(final, "new")
    assert (final / "file").read_text() == "new"
    assert _names(tmp_path) == ["v000001"]


def test_pruning_keeps_the_newest_and_sweeps_leftovers(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        _write(tmp_path / f"v{number:06d}", "")
    durable.fresh(durable.temporary(tmp_path / "v000011"))
    durable.prune(tmp_path, "v", keep=2)
    assert _names(tmp_path) == ["v000002", "v000010"]


def test_an_absent_parent_has_no_folders(tmp_path: Path) -> None:
    assert durable.newest(tmp_path / "checkpoints", "step-") is None
