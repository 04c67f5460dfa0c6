"""The production brain in virtual time: equal seeds give equal traces, and the figures mean what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from agentrl.ledger.ledger import Ledger
from agentrl.ledger.reader import LedgerReader
from agentrl.observe.config import ObserveConfig
from agentrl.observe.events import Event
from agentrl.observe.files import event_json
from agentrl.simulation.baselines import Baseline, run_baseline
from agentrl.simulation.figures import Figures
from agentrl.simulation.life import World
from agentrl.simulation.loop import simulate
from agentrl.simulation.run import Scenario, build
from tests.simulation.small import scenario


class Trace:
    """An observer that keeps every event as a line."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def emit(self, event: Event) -> None:
        self.lines.append(event_json(event))


def run(chosen: Scenario, *, loop_seed: int = 0) -> tuple[Figures, str]:
    """Figures, and everything that the ledger and the observer know."""

    async def main() -> tuple[Figures, str]:
        ledger, trace = Ledger.take(":memory:"), Trace()
        simulation = build(chosen, ledger, observer=trace)
        await simulation.run()
        return simulation.figures(), "\n".join([*trace.lines, *ledger._db.iterdump()])

    return simulate(main(), seed=loop_seed)


def test_equal_seeds_give_equal_traces_byte_for_byte() -> None:
    first, again = run(scenario()), run(scenario())
    assert first == again
    assert len(first[1]) > 100_000
    assert run(scenario(seed=1))[1] != first[1]


_PROGRAM = """
import hashlib
from tests.simulation.small import scenario
from tests.simulation.test_run import run
print(hashlib.sha256(run(scenario())[1].encode()).hexdigest())
"""


def test_the_trace_does_not_depend_on_the_process() -> None:
    def digest(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run(
            [sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert digest("1") == digest("2")


@pytest.mark.parametrize("swing", ["all", "none", "1"])
def test_a_run_makes_its_steps_and_trains_what_was_drawn(swing: str) -> None:
    chosen = scenario(steps=4, schedule={"swing": swing}, machines=["trainer.step_s=20"])
    whole = replace(chosen.config, observe=ObserveConfig())

    async def main() -> None:
        ledger = Ledger.take(":memory:")
        simulation = build(replace(chosen, config=whole), ledger)
        await simulation.run()
        reader = LedgerReader.of(ledger)
        world = World(chosen.workload, seed=0)
        assert [step.step for step in reader.steps()] == [1, 2, 3, 4]
        assert all(step.published_at is not None for step in reader.steps())
        for step in reader.steps():
            batch = reader.load_batch(step.step)
            assert len(batch) == 16
            for trajectory in batch:
                group, member, attempt = (int(part[1:]) for part in trajectory.episode.split("."))
                life = world.life(group, member, attempt)
                assert (trajectory.reward, trajectory.num_turns) == (life.reward, len(life.turns))
                assert trajectory.num_sampled == sum(turn.generated_tokens for turn in life.turns)

    simulate(main(), seed=0)


def test_figures_of_a_run() -> None:
    figures, _ = run(scenario(steps=6, laws=["failure_share=0.2"]))
    assert len(figures.batches_s) == 6
    assert figures.cold_s == figures.batches_s[0]
    assert figures.steady_s == pytest.approx((figures.batches_s[5] - figures.batches_s[2]) / 3)
    assert 0 < figures.busy < 1
    assert figures.prefill_per_generated > 0
    assert figures.verdicts["infra_failure"] > 0
    assert (figures.infra_as_reward, figures.lost) == (0, 0)
    assert 0 <= figures.span_median <= figures.span_p95 <= figures.span_max < 6


def baseline(kind: Baseline) -> Figures:
    return simulate(run_baseline(kind, scenario(laws=["failure_share=0.2"])), seed=0)


def test_baselines_keep_all_they_launch_and_barriers_cost() -> None:
    naive, barrier = baseline(Baseline.NAIVE), baseline(Baseline.BARRIER)
    for figures in (naive, barrier):
        assert figures.verdicts["success"] + figures.verdicts["model_failure"] == 16
        assert figures.verdicts["infra_failure"] > 0
        assert figures.infra_as_reward == 0
    assert barrier.cold_s > naive.cold_s
