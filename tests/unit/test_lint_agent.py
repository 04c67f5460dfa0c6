"""The lint's rules on who acts: what each catches, and where it points."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.config.lint import Severity, lint
from agentrl.config.lint_agent import AGENT_RULES
from tests.unit.test_lint import ERROR, FACTS, WARNING, found, with_

HARNESS: dict[str, Any] = {"agent__harness": {"command": ["true"], "model": "policy"}}
RENAMED = {"command": [], "model": "gpt"}
CASES: list[tuple[str, dict[str, Any], Severity, str]] = [
    (
        "harness_has_its_own_prompts",
        {"agent__harness": {"command": [], "model": "gpt"}},
        WARNING,
        "agent.harness.model",
    ),
    ("harness_has_its_own_prompts", {**HARNESS, "agent__system_prompt": "Be brief"}, ERROR, "agent.system_prompt"),
    ("harness_has_its_own_prompts", {**HARNESS, "agent__examples": ["a", "b"]}, ERROR, "agent.examples"),
    (
        "harness_starts_at_the_beginning",
        {**HARNESS, "sandbox__snapshot_every_turns": 2},
        ERROR,
        "sandbox.snapshot_every_turns",
    ),
    ("harness_starts_at_the_beginning", {**HARNESS, "tasks__branch_from": "r/e@1"}, ERROR, "tasks.branch_from"),
    (
        "dropping_leaves_something",
        {"agent__on_break": "drop", "agent__reasoning": "think"},
        WARNING,
        "agent.on_break",
    ),
]


@pytest.mark.parametrize(("rule", "changes", "severity", "where"), CASES)
def test_rule_catches(rule: str, changes: dict[str, Any], severity: Severity, where: str) -> None:
    assert (rule, severity, where) in found(with_(**changes))


def test_every_rule_has_a_case() -> None:
    assert {rule.__name__ for rule in AGENT_RULES} == {case[0] for case in CASES}


def test_a_harness_alone_is_in_order() -> None:
    rules = {rule.__name__ for rule in AGENT_RULES}
    assert not [finding for finding in lint(with_(**HARNESS), FACTS) if finding.rule in rules]
