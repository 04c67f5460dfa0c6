"""What ships: the wheel holds the packaged YAML, and every option of every group composes."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from agentrl.config.catalog import PACKAGED, Catalog
from agentrl.config.compose import load

REPOSITORY = Path(__file__).parents[2]
OPTIONS = [(group, option) for group in Catalog((PACKAGED,)).groups() for option in Catalog((PACKAGED,)).options(group)]
NEEDS_PATH = {("model", "folder"): "model.path=x", ("tasks", "folder"): "tasks.path=x"}


def test_the_groups_are_those_of_the_schema() -> None:
    from agentrl.config.fields import schema

    sections = {section for section in schema().sections if section and "." not in section}
    assert {group for group, _ in OPTIONS} == sections


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_composes(group: str, option: str) -> None:
    needed = [value for key, value in NEEDS_PATH.items() if key == (group, option)]
    loaded = load(REPOSITORY / "conf" / "exp.yaml", [f"{group}={option}", *needed])
    assert f"{group}/{option}" in [source.name for source in loaded.sources]


def test_every_enum_option_has_a_file_in_its_group() -> None:
    catalog = Catalog((PACKAGED,))
    for group, key in (("agent", "format"), ("observe", "live"), ("publish", "method")):
        from agentrl.config.fields import schema

        assert set(schema().leaves[f"{group}.{key}"].options) <= set(catalog.options(group))


def test_the_wheel_holds_every_packaged_file(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {str(path.relative_to(REPOSITORY)) for path in PACKAGED.rglob("*.yaml")}
    assert expected <= names
    assert {"agentrl/py.typed", "agentrl/cli/main.py"} <= names
