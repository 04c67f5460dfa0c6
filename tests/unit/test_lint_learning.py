"""The lint's rules on the learning algorithm: what each catches, where it points, and what it lets pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.config.compose import load
from agentrl.config.inspect_job import layer_names
from agentrl.config.lint import LintFacts, Severity, lint
from agentrl.config.lint_learning import LEARNING_RULES
from tests.fixtures.tiny_model import make_tiny_model
from tests.unit.test_lint import ERROR, FACTS, WARNING, found, with_

CASES: list[tuple[str, dict[str, Any], Severity, str]] = [
    ("ratio_bands_hold_one", {"token_ratio_min": 1.1}, ERROR, "token_ratio_min"),
    ("ratio_bands_hold_one", {"geometric_ratio_max": 0.99}, ERROR, "geometric_ratio_max"),
    ("group_bands_ordered", {"down_weight_divergence": 0.2, "drop_divergence": 0.1}, ERROR, "drop_divergence"),
    ("overlength_is_a_slope", {"overlength_from_tokens": 100}, ERROR, "overlength_full_tokens"),
    ("overlength_is_a_slope", {"overlength_full_tokens": 100}, ERROR, "overlength_from_tokens"),
    (
        "overlength_is_a_slope",
        {"overlength_from_tokens": 100, "overlength_full_tokens": 100},
        ERROR,
        "overlength_full_tokens",
    ),
    (
        "overlength_is_a_slope",
        {"overlength_from_tokens": 9000, "overlength_full_tokens": 9001},
        WARNING,
        "overlength_from_tokens",
    ),
    ("lag_is_corrected_once", {"anchor": "behaviour"}, ERROR, "importance"),
    ("lag_is_corrected_once", {"importance": "none"}, WARNING, "importance"),
    ("constant_has_tokens", {"aggregation": "constant"}, ERROR, "aggregation_tokens"),
    ("clips_fit_surrogate", {"surrogate": "gspo"}, WARNING, "clip_high"),
    ("clips_fit_surrogate", {"dual_clip": 1.2}, ERROR, "dual_clip"),
    ("learning_settings_used", {"surrogate": "dppo_tv", "clip_low": 0.1}, WARNING, "clip_low"),
    ("learning_settings_used", {"surrogate": "cispo", "dual_clip": 3.0}, WARNING, "dual_clip"),
    ("learning_settings_used", {"tv_bound": 0.1}, WARNING, "tv_bound"),
    ("learning_settings_used", {"importance": "none", "importance_cap": 3.0}, WARNING, "importance_cap"),
    ("learning_settings_used", {"aggregation_tokens": 10}, WARNING, "aggregation_tokens"),
    ("learning_settings_used", {"kl_estimator": "k1"}, WARNING, "kl_estimator"),
    ("learning_settings_used", {"overlength_penalty": 0.5}, WARNING, "overlength_penalty"),
]


@pytest.mark.parametrize(("rule", "values", "severity", "key"), CASES)
def test_rule_finds(rule: str, values: dict[str, Any], severity: Severity, key: str) -> None:
    config = with_(**{f"algorithm__{name}": value for name, value in values.items()})
    assert (rule, severity, f"algorithm.{key}") in found(config)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("lr_final_share", {"lr_final_share": 0.1}),
        ("lora_alpha", {"lora_alpha": 8.0}),
        ("lora_targets", {"lora_targets": ["q_proj"]}),
    ],
)
def test_settings_of_a_part_that_is_off_are_ignored(key: str, values: dict[str, Any]) -> None:
    config = with_(**{f"trainer__{name}": value for name, value in values.items()})
    assert ("learning_settings_used", WARNING, f"trainer.{key}") in found(config)


def test_what_an_evenly_stricter_treatment_of_groups_asks_for_passes() -> None:
    values = {"down_weight_divergence": 0.1, "truncate_divergence": 0.2, "drop_divergence": 0.2}
    assert lint(with_(**{f"algorithm__{name}": value for name, value in values.items()}), FACTS) == []


def test_adapters_on_layers_that_the_model_has_not_are_an_error(tmp_path: Path) -> None:
    make_tiny_model(tmp_path)
    facts = LintFacts(num_cpus=2, layer_names=layer_names(tmp_path))
    assert found(with_(trainer__lora_rank=4), facts) == set()
    wrong = found(with_(trainer__lora_rank=4, trainer__lora_targets=["q_proj", "query"]), facts)
    assert wrong == {("lora_layers_exist", ERROR, "trainer.lora_targets")}


def test_a_window_whose_groups_would_be_dropped_for_their_age_is_a_warning() -> None:
    wide: dict[str, Any] = {"schedule__swing": "none", "schedule__max_live_episodes": 64}
    facts = LintFacts(num_cpus=4)
    assert found(with_(schedule__max_policy_lag=1, **wide), facts) == {
        ("lag_within_bound", WARNING, "schedule.max_policy_lag")
    }
    assert found(with_(schedule__max_policy_lag=2, **wide), facts) == set()


def test_every_rule_has_a_case_and_a_reason() -> None:
    others = {"lora_layers_exist", "lag_within_bound"}
    assert {rule.__name__ for rule in LEARNING_RULES} == {rule for rule, _, _, _ in CASES} | others
    assert all(rule.__doc__ for rule in LEARNING_RULES)


@pytest.mark.parametrize(
    "name", sorted(p.stem for p in (Path(__file__).parents[2] / "agentrl/conf/algorithm").glob("*.yaml"))
)
def test_every_packaged_algorithm_fits_together(tmp_path: Path, name: str) -> None:
    file = tmp_path / "job.yaml"
    overrides = ["model: tiny", "tasks: boxes", "agent: line", f"algorithm: {name}"]
    lines = ["defaults:", "  - agentrl", *(f"  - override /{line}" for line in overrides), "  - _self_"]
    file.write_text("\n".join(lines) + "\n")
    assert lint(load(file).config, FACTS) == []
