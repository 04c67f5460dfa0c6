"""Layers of an overlay applied upon each other, as the kernel would show them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from agentrl.sandbox.supervisor.merge import apply_layer, remove


@pytest.fixture
def layers(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A lower one, an upper one, and where they are put together."""
    made = (tmp_path / "lower", tmp_path / "upper", tmp_path / "target")
    for folder in made:
        folder.mkdir()
    return made


def whiteout(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(0, 0))


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def put_together(*layers: Path, link: bool = False) -> Path:
    *sources, target = layers
    for source in sources:
        apply_layer(str(source), str(target), link=link)
    return target


def test_the_upper_layer_wins(layers: tuple[Path, Path, Path]) -> None:
    lower, upper, _ = layers
    for folder, text in ((lower, "old"), (upper, "new")):
        (folder / "both").mkdir()
        (folder / "both" / "file").write_text(text)
        (folder / "both" / text).write_text(text)
    (lower / "kind").mkdir()
    (lower / "kind" / "inside").write_text("gone with its folder")
    (upper / "kind").write_text("a file now")
    target = put_together(*layers)
    assert names(target) == ["both", "both/file", "both/new", "both/old", "kind"]
    assert (target / "both" / "file").read_text() == "new"


def test_a_whiteout_removes_and_stays(layers: tuple[Path, Path, Path]) -> None:
    lower, upper, _ = layers
    (lower / "folder" / "deep").mkdir(parents=True)
    whiteout(upper / "folder")
    target = put_together(*layers)
    assert names(target) == ["folder"]
    info = (target / "folder").lstat()
    assert stat.S_ISCHR(info.st_mode) and info.st_rdev == 0, "it must still hide what lies in yet lower layers"


def test_an_opaque_folder_replaces_what_was_there(layers: tuple[Path, Path, Path]) -> None:
    lower, upper, _ = layers
    (lower / "folder").mkdir()
    (lower / "folder" / "old").touch()
    (upper / "folder").mkdir()
    (upper / "folder" / "new").touch()
    os.setxattr(upper / "folder", "user.overlay.opaque", b"y")
    os.setxattr(upper / "folder" / "new", "user.overlay.origin", b"of another place")
    target = put_together(*layers)
    assert names(target) == ["folder", "folder/new"]
    assert os.getxattr(target / "folder", "user.overlay.opaque") == b"y"
    assert os.listxattr(target / "folder" / "new") == []


def test_attributes_links_holes_and_kinds_are_kept(layers: tuple[Path, Path, Path]) -> None:
    lower, _, target = layers
    (lower / "file").write_text("x")
    (lower / "file").chmod(0o4751)
    os.setxattr(lower / "file", "user.mine", b"1")
    os.utime(lower / "file", ns=(1_000_000_007, 2_000_000_009))
    os.link(lower / "file", lower / "twin")
    (lower / "link").symlink_to("/nowhere/at/all")
    os.mkfifo(lower / "pipe")
    with (lower / "sparse").open("wb") as file:
        file.seek(1 << 30)
        file.write(b"end")
    put_together(lower, target)
    info = (target / "file").stat()
    assert (stat.S_IMODE(info.st_mode), info.st_mtime_ns, info.st_nlink) == (0o4751, 2_000_000_009, 2)
    assert os.getxattr(target / "file", "user.mine") == b"1"
    assert (target / "file").samefile(target / "twin")
    assert str((target / "link").readlink()) == "/nowhere/at/all"
    assert stat.S_ISFIFO((target / "pipe").lstat().st_mode)
    sparse = (target / "sparse").stat()
    assert sparse.st_size == (1 << 30) + 3 and sparse.st_blocks * 512 < 1 << 20


def test_linking_takes_no_space_and_leaves_the_source_alone(layers: tuple[Path, Path, Path]) -> None:
    lower, upper, target = layers
    (lower / "file").write_text("old")
    (upper / "file").write_text("new")
    put_together(*layers, link=True)
    assert (target / "file").samefile(upper / "file")
    assert (lower / "file").read_text() == "old"


def test_removing_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    (tmp_path / "folder" / "deep" / "link").symlink_to(tmp_path / "kept")
    remove(str(tmp_path / "folder"))
    remove(str(tmp_path / "not there"))
    assert names(tmp_path) == ["kept", "kept/file"]
