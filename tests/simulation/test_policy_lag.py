"""The lag that `agentrl plan` predicts from the schedule, against the controller in virtual time."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

import pytest

from agentrl.config.policy_lag import LagPlan, predict_lag
from agentrl.config.schema import JobConfig
from agentrl.controller.config import ScheduleConfig, Stragglers
from agentrl.ledger.ledger import Ledger
from agentrl.ledger.reader import LedgerReader
from agentrl.simulation.loop import simulate
from agentrl.simulation.run import Scenario, build
from tests.simulation.small import scenario


def lags(chosen: Scenario) -> list[int]:
    """Of each trained group's oldest token, from the fifth step on."""

    async def main() -> LedgerReader:
        ledger = Ledger.take(":memory:")
        await build(chosen, ledger).run()
        return LedgerReader.of(ledger)

    reader = simulate(main(), seed=0)
    steps = {group.id: group.step or 0 for group in reader.groups(["batched"])}
    oldest: dict[str, int] = {}
    for row in reader.episodes():
        if row.group in steps and row.oldest_version is not None:
            oldest[row.group] = min(row.oldest_version, oldest.get(row.group, row.oldest_version))
    return [steps[group] - 1 - version for group, version in oldest.items() if steps[group] > 4]


@pytest.mark.parametrize(
    ("swing", "window_groups", "stragglers"),
    [("all", 4, "carry"), ("all", 8, "carry"), ("all", 12, "wait"), ("none", 8, "carry"), ("1", 8, "wait")],
)
def test_what_is_predicted_comes_about(swing: str, window_groups: int, stragglers: str) -> None:
    schedule: dict[str, Any] = {"swing": swing, "max_policy_lag": 20, "stragglers": Stragglers(stragglers)}
    machines = ["trainer.step_s=20", "sandboxes=80"]
    chosen = scenario(steps=11, live=64, window_groups=window_groups, schedule=schedule, machines=machines)
    predicted, found = predict_lag(chosen.config), lags(chosen)
    assert statistics.mean(found) == pytest.approx(predicted.mean, abs=0.5)
    assert max(found) <= predicted.most


def predicted(**schedule: Any) -> LagPlan:
    """Of 8 groups of 16 a step on one engine."""
    return predict_lag(replace(JobConfig(), schedule=ScheduleConfig(**{"max_live_episodes": 1024, **schedule})))


def test_it_is_the_groups_in_flight_over_those_of_a_step() -> None:
    assert predicted(window_groups=8) == LagPlan(mean=0.0, most=0)
    assert predicted(window_groups=8, swing="none") == LagPlan(mean=1.0, most=1)
    assert predicted(window_groups=24) == LagPlan(mean=2.0, most=4)
    assert predicted(window_groups=20, stragglers=Stragglers.wait) == LagPlan(mean=1.5, most=2)
    assert predicted(window_groups=64, swing="none", stragglers=Stragglers.wait) == LagPlan(mean=8.0, most=4)


def test_few_live_episodes_keep_a_wide_window_from_filling() -> None:
    assert predicted(window_groups=64, max_live_episodes=128) == LagPlan(mean=1.0, most=4)
