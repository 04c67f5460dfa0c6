"""A briefly warmed-up tiny model, made once, and a lab per test that proves that nothing is left running."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.model.config import ModelConfig, Recipe
from agentrl.model.prepare import prepare_model
from tests.e2e.job import Lab


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    return prepare_model(ModelConfig(recipe=Recipe.tiny, warmup_steps=60), 0, folder, report=lambda _: None)


@pytest.fixture
def lab(tmp_path: Path, tiny_model: Path) -> Iterator[Lab]:
    made = Lab(tmp_path, tiny_model)
    yield made
    left = made.left_over()
    for _, command in left:
        print(f"left over: {command}")
    assert left == []
