"""What cannot work of how new weights reach the engines is refused, and what would be ignored is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agentrl.config.lint import lint
from agentrl.config.lint_publish import PUBLISH_RULES
from agentrl.config.schema import JobConfig
from agentrl.controller.config import PublishConfig, PublishMethod, ScheduleConfig
from agentrl.inference.config import EngineBackend, InferenceConfig
from agentrl.trainer.config import TrainerConfig

DIRECT, SHARED = PublishMethod.direct, PublishMethod.shared
REMOTE = InferenceConfig(backend=EngineBackend.attached, urls=["http://10.0.0.7:30000"])
LOCAL = InferenceConfig(backend=EngineBackend.attached, urls=["http://127.0.0.1:30000"])
SGLANG = InferenceConfig(backend=EngineBackend.sglang)
LORA = TrainerConfig(lora_rank=4)
APART = ScheduleConfig(swing="none")


def found(publish: PublishConfig, **others: Any) -> list[tuple[str, str]]:
    """(severity, rule) of what the rules of this kind say."""
    names = {rule.__name__ for rule in PUBLISH_RULES}
    findings = lint(replace(JobConfig(), publish=publish, **others))
    return [(finding.severity.value, finding.rule) for finding in findings if finding.rule in names]


CASES: list[tuple[PublishConfig, dict[str, Any], list[tuple[str, str]]]] = [
    (PublishConfig(), {}, []),
    (PublishConfig(method=DIRECT, storage_every=10), {}, []),
    (PublishConfig(storage_every=4), {}, [("error", "something_is_stored")]),
    (PublishConfig(storage_every=4, delta=True), {"trainer": LORA}, []),
    (PublishConfig(delta=True), {"trainer": LORA}, [("warning", "something_is_stored")]),
    (PublishConfig(method=DIRECT, delta=True), {}, [("warning", "something_changes_alone")]),
    (
        PublishConfig(method=DIRECT, delta=True, probe=False),
        {"trainer": LORA},
        [("error", "changes_are_checked")],
    ),
    (PublishConfig(method=SHARED), {"inference": REMOTE}, [("error", "shared_is_on_one_host")]),
    (PublishConfig(method=SHARED), {"inference": LOCAL}, []),
    (
        PublishConfig(method=DIRECT),
        {"inference": REMOTE, "schedule": APART},
        [("error", "direct_reaches_the_trainer")],
    ),
    (PublishConfig(method=DIRECT, address="10.0.0.1"), {"inference": REMOTE, "schedule": APART}, []),
    (PublishConfig(address="10.0.0.1"), {}, [("warning", "direct_reaches_the_trainer")]),
    (PublishConfig(method=DIRECT), {"inference": SGLANG}, [("error", "direct_has_gpus_of_its_own")]),
    (PublishConfig(method=DIRECT), {"inference": SGLANG, "schedule": APART}, []),
    (PublishConfig(method=SHARED), {"inference": SGLANG}, []),
]


@pytest.mark.parametrize(("publish", "others", "expected"), CASES)
def test_a_rule_speaks_where_it_should(
    publish: PublishConfig, others: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    assert found(publish, **others) == expected


def test_every_rule_has_a_case_and_a_reason() -> None:
    assert {rule.__name__ for rule in PUBLISH_RULES} == {name for _, _, found in CASES for _, name in found}
    assert all(rule.__doc__ for rule in PUBLISH_RULES)
