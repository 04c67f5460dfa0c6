"""Completion of overrides: from the schema and the groups, without Hydra."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config.catalog import catalog_for
from agentrl.config.complete import candidates


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("sched", ["schedule.", "schedule="]),
        ("schedule.ste", ["schedule.steps="]),
        ("model=", ["model=folder", "model=mine", "model=smollm2", "model=tiny"]),
        ("model=t", ["model=tiny"]),
        ("tasks.family=", ["tasks.family=boxes", "tasks.family=none", "tasks.family=shell_basics"]),
        ("schedule.drop_zero_variance=", ["schedule.drop_zero_variance=false", "schedule.drop_zero_variance=true"]),
        ("schedule.steps=", ["schedule.steps=25"]),
        ("model.path=", ["model.path=null"]),
        ("+observe=p", ["+observe=plain"]),
        ("~obs", ["~observe.", "~observe="]),
        ("exper", ["experiment="]),
        ("experiment=", ["experiment=quick"]),
        ("nothing", []),
        ("nothing=", []),
        ("schedule.nothing.", []),
    ],
)
def test_candidates(word: str, expected: list[str], tmp_path: Path) -> None:
    for name in ("model/mine", "experiment/quick"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / f"{name}.yaml").write_text("")
    assert candidates(word, catalog_for(tmp_path / "job.yaml")) == expected


def test_nothing_typed_offers_every_section_and_group(tmp_path: Path) -> None:
    found = candidates("", catalog_for(tmp_path / "job.yaml"))
    assert {"model.", "model=", "seed=", "name="} <= set(found)
