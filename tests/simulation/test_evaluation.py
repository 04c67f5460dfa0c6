"""Evaluations in the middle of a run, in virtual time: what is trained on is what would have been without them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agentrl.controller.config import Stragglers
from agentrl.controller.evaluation.heldout import due, is_evaluation
from agentrl.controller.fleet.fleet import Fleet
from agentrl.ledger.ledger import Ledger
from agentrl.ledger.reader import LedgerReader
from agentrl.observe.config import ObserveConfig
from agentrl.observe.events import Evaluated, Event, Phase
from agentrl.simulation.loop import simulate
from agentrl.simulation.run import Scenario, build
from agentrl.wire import Trajectory
from tests.simulation.small import scenario

INSTANT = [f"{law}={{law: constant, value: 0}}" for law in ("tool_s", "start_cold_s", "start_warm_s", "verifier_s")]


class Evaluating:
    """An observer that knows whether an evaluation is under way."""

    def __init__(self) -> None:
        self.label = ""

    def emit(self, event: Event) -> None:
        if isinstance(event, Phase):
            self.label = event.detail if event.phase == "evaluating" else ""
        elif isinstance(event, Evaluated):
            self.label = ""


def run(chosen: Scenario, observer: Evaluating | None = None) -> LedgerReader:
    """With sandboxes for both, and every trajectory kept."""
    config = chosen.config
    sandbox = replace(config.sandbox, max_sandboxes=config.schedule.max_live_episodes + 3)
    kept = replace(chosen, config=replace(config, observe=ObserveConfig(), sandbox=sandbox))

    async def main() -> LedgerReader:
        ledger = Ledger.take(":memory:")
        await build(kept, ledger, observer=observer or Evaluating()).run()
        return LedgerReader.of(ledger)

    return simulate(main(), seed=0)


def scheduled(every: int, laws: list[str], **schedule: Any) -> Scenario:
    changes = {"eval_tasks": 3, "eval_every": every, **schedule}
    return scenario(steps=5, schedule=changes, laws=laws, machines=["trainer.step_s=20"])


def batches(reader: LedgerReader) -> list[list[Trajectory]]:
    return [reader.load_batch(step.step) for step in reader.steps()]


def labels(reader: LedgerReader) -> list[str]:
    return list(dict.fromkeys(row.label for row in sorted(reader.evaluations(), key=lambda row: row.version)))


def test_batches_are_the_same_to_the_last_byte_where_nothing_is_carried_over() -> None:
    """With real times of tools and sandboxes: whole groups, each batch all that was launched."""
    synchronous = {"window_groups": 4, "stragglers": Stragglers.wait, "swing": "all"}
    without, with_ = run(scheduled(0, [], **synchronous)), run(scheduled(1, [], **synchronous))
    assert batches(with_) == batches(without)
    assert labels(with_) == ["before", "step 1", "step 2", "step 3", "step 4", "after"]
    assert labels(without) == ["before", "after"]


def test_carried_over_episodes_end_as_they_would_have_in_the_same_batches() -> None:
    """All but which of two versions sampled the few tokens about a switch: that hangs on who comes first."""

    def content(reader: LedgerReader) -> list[list[tuple[Any, ...]]]:
        return [[(t.episode, t.task, t.ids, t.mask, t.reward) for t in batch] for batch in batches(reader)]

    without, with_ = run(scheduled(0, INSTANT, swing="all")), run(scheduled(2, INSTANT, swing="all"))
    assert any(t.oldest_version != t.newest_version for batch in batches(without) for t in batch), "none was carried"
    assert content(with_) == content(without)


@pytest.mark.parametrize("swing", ["all", "none", "1"])
def test_the_order_of_tasks_does_not_change_and_no_training_message_is_asked_for_meanwhile(
    swing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, asked = Evaluating(), list[tuple[str, str]]()
    generate = Fleet._generate

    async def noted(self: Fleet, member: Any, episode: str, *rest: Any, **options: Any) -> Any:
        asked.append((seen.label, episode))
        return await generate(self, member, episode, *rest, **options)

    monkeypatch.setattr(Fleet, "_generate", noted)
    with_ = run(scheduled(1, [], swing=swing), seen)
    middle = [episode for label, episode in asked if label.startswith("step")]
    assert middle and all(map(is_evaluation, middle))
    states = ["open", "ready", "batched", "dropped"]
    order = [(group.id, group.task) for group in with_.groups(states)]
    without = [(group.id, group.task) for group in run(scheduled(0, [], swing=swing)).groups(states)]
    shorter = min(len(order), len(without))
    assert shorter >= 20
    assert order[:shorter] == without[:shorter]


def test_versions_between_the_first_and_the_last_are_due_every_so_many_steps() -> None:
    assert [version for version in range(11) if due(version, every=5, steps=10)] == [5]
    assert not any(due(version, every=0, steps=10) for version in range(11))
