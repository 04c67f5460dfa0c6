"""The lint's rules on engines and router: what each catches, where it points, and what it lets pass."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.config.lint import Severity
from agentrl.config.lint_inference import INFERENCE_RULES
from tests.unit.test_lint import ERROR, WARNING, found, with_


def sglang(**values: Any) -> dict[str, Any]:
    return {"backend": "sglang", "sglang": values}


CASES: list[tuple[str, dict[str, Any], Severity, str]] = [
    ("router_settings_have_a_router", {"router_url": "http://r:1"}, WARNING, "router_url"),
    ("router_settings_have_a_router", {"router_python": "/env/python"}, WARNING, "router_python"),
    (
        "router_settings_have_a_router",
        {"router": "sglang", "router_url": "http://r:1", "router_python": "/env/python"},
        WARNING,
        "router_python",
    ),
    ("features_run_on_device", sglang(device="cpu", deterministic=True), ERROR, "sglang.deterministic"),
    (
        "features_run_on_device",
        sglang(device="cpu", speculation={"algorithm": "NGRAM"}),
        ERROR,
        "sglang.speculation.algorithm",
    ),
    ("speculation_is_whole", sglang(speculation={"algorithm": "EAGLE"}), ERROR, "sglang.speculation.draft_model"),
    (
        "speculation_is_whole",
        sglang(speculation={"algorithm": "NGRAM", "draft_model": "/d"}),
        WARNING,
        "sglang.speculation.draft_model",
    ),
    ("speculation_is_whole", sglang(speculation={"num_steps": 2}), WARNING, "sglang.speculation.num_steps"),
    ("something_is_released", sglang(release=[]), ERROR, "sglang.release"),
    ("something_is_released", sglang(release=["weights", "weights"]), ERROR, "sglang.release"),
]


@pytest.mark.parametrize(("rule", "values", "severity", "key"), CASES)
def test_rule_finds(rule: str, values: dict[str, Any], severity: Severity, key: str) -> None:
    config = with_(**{f"inference__{name}": value for name, value in values.items()})
    assert (rule, severity, f"inference.{key}") in found(config)


def test_a_router_is_not_started_in_a_cluster() -> None:
    config = with_(inference__router="sglang", cluster__backend="kubernetes")
    assert ("router_is_reached_in_a_cluster", ERROR, "inference.router_url") in found(config)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"router": "sglang"},
        {"router": "sglang", "router_url": "http://r:1"},
        sglang(device="cuda", deterministic=True, release=["kv_cache"]),
        sglang(speculation={"algorithm": "STANDALONE", "draft_model": "/d", "num_steps": 3}),
    ],
)
def test_rules_let_pass(values: dict[str, Any]) -> None:
    config = with_(**{f"inference__{name}": value for name, value in values.items()})
    assert not {rule.__name__ for rule in INFERENCE_RULES} & {rule for rule, _, _ in found(config)}


def test_every_rule_is_tested() -> None:
    elsewhere = {"router_is_reached_in_a_cluster"}
    assert {rule for rule, *_ in CASES} | elsewhere == {rule.__name__ for rule in INFERENCE_RULES}
