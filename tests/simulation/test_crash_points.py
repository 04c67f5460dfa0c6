"""A kill at every point around what must be durable: batch fixed, step applied, version published, episode ended.

A run without faults tells in which rounds of the loop these things happen; then the same run is struck there, once for
every round nearby and every target. Up to the strike it is the same run.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.ledger.reader import LedgerReader
from agentrl.observe.events import BatchReady, EpisodeEnded, Event, Published, StepApplied
from agentrl.simulation.faults import Fault, FaultyRun, Target
from agentrl.simulation.loop import running_loop, simulate
from agentrl.simulation.run import Scenario
from tests.simulation.invariants import check
from tests.simulation.small import scenario

AROUND = range(-2, 6)
"""Rounds before and after an event."""
STEP = (BatchReady, StepApplied, Published)


class Rounds:
    """An observer that notes the rounds in which something durable happened."""

    def __init__(self) -> None:
        self.of: dict[type[Event], list[int]] = {}

    def emit(self, event: Event) -> None:
        self.of.setdefault(type(event), []).append(running_loop().num_rounds)


def small(swing: str) -> Scenario:
    return scenario(
        steps=2,
        live=3,
        window_groups=2,
        laws=["groups=1", "group_size=2", "turns.median=1", "turns.cap=2"],
        machines=["trainer.step_s=7"],
        schedule={"swing": swing, "max_policy_lag": 2, "stall_timeout_s": 7200.0},
    )


def strike(chosen: Scenario, folder: Path, faults: list[Fault]) -> dict[type[Event], list[int]]:
    """The run, struck and checked; in which rounds things happened."""
    rounds = Rounds()

    async def main() -> None:
        run = FaultyRun(chosen, folder / "ledger.sqlite", observer=rounds)
        await run.run(faults)
        check(run, chosen, LedgerReader.of(run.lives[-1].brain.ledger))

    simulate(main(), seed=0)
    return rounds.of


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        *((kind, target) for kind in STEP for target in (Target.CONTROLLER, Target.TRAINER, Target.ENGINE)),
        (EpisodeEnded, Target.CONTROLLER),
    ],
)
@pytest.mark.parametrize("swing", ["all", "none", "1"])
def test_a_kill_at_any_point_keeps_every_promise(swing: str, kind: type[Event], target: Target, tmp_path: Path) -> None:
    chosen = small(swing)
    first = tmp_path / "first"
    first.mkdir()
    near = sorted({round_ + offset for round_ in strike(chosen, first, [])[kind] for offset in AROUND})
    for number in near:
        folder = tmp_path / str(number)
        folder.mkdir()
        strike(chosen, folder, [Fault(target=target, at_round=number)])
