"""Whatever the workload, the policy and the faults: no group in two batches, none lost, no lag over its bound."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.controller.config import Stragglers
from agentrl.controller.lifecycle.job import leaves
from agentrl.errors import ProcessFailed
from agentrl.ledger.reader import LedgerReader
from agentrl.observe.events import Event
from agentrl.simulation.faults import Fault, FaultyRun, Target
from agentrl.simulation.loop import simulate
from agentrl.simulation.run import Scenario
from tests.simulation.invariants import check
from tests.simulation.small import scenario

HORIZON_S = 3 * 86_400.0
"""Of virtual time; the runs here need hours."""


class Bounds:
    """An observer that checks at every event that queues keep their bounds."""

    def __init__(self, chosen: Scenario) -> None:
        self._schedule = chosen.config.schedule
        self.run: FaultyRun | None = None

    def emit(self, event: Event) -> None:
        assert self.run is not None
        brain = self.run.lives[-1].brain if self.run.lives else None
        if brain is not None:
            assert brain.collector.num_live <= self._schedule.max_live_episodes
            assert brain.collector.num_ready <= self._schedule.window_groups


def run_with(chosen: Scenario, faults: list[Fault], *, loop_seed: int) -> FaultyRun:
    """The run, checked."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.sqlite"

        async def main() -> FaultyRun:
            bounds = Bounds(chosen)
            run = bounds.run = FaultyRun(chosen, path, observer=bounds)
            await run.run(faults)
            check(run, chosen, LedgerReader.of(run.lives[-1].brain.ledger))
            return run

        return simulate(main(), seed=loop_seed, horizon_s=HORIZON_S)


targets, indices = st.sampled_from(list(Target)), st.integers(0, 40)
faults = st.lists(
    st.one_of(
        st.builds(Fault, at_s=st.integers(0, 2500).map(float), target=targets, index=indices),
        st.builds(Fault, at_round=st.integers(0, 6000), target=targets, index=indices),
    ),
    max_size=8,
)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of `scenario`."""
    groups = draw(st.integers(1, 3))
    laws = {
        "groups": groups,
        "max_episode_tokens": 19_000,
        "group_size": draw(st.integers(2, 4)),
        "turns.median": draw(st.integers(1, 5)),
        "failure_share": draw(st.sampled_from([0, 0.1, 0.3])),
        "start_hang_share": draw(st.sampled_from([0, 0.3])),
    }
    machines = {
        "engines": draw(st.integers(1, 3)),
        "engine.context_tokens": 20_000,
        "engine.kv_tokens": draw(st.sampled_from([140_000, 30_000])),
        "engine.max_running": draw(st.sampled_from([1, 4, 64])),
        "engine.update_weights_s": draw(st.sampled_from([0, 30])),
        "trainer.step_s": draw(st.sampled_from([0, 5, 300])),
    }
    return {
        "seed": draw(st.integers(0, 50)),
        "steps": draw(st.integers(1, 4)),
        "live": draw(st.integers(1, 16)),
        "window_groups": groups + draw(st.integers(0, 4)),
        "laws": [f"{key}={value}" for key, value in laws.items()],
        "machines": [f"{key}={value}" for key, value in machines.items()],
        "schedule": {
            "swing": draw(st.sampled_from(["all", "none", "1"])),
            "max_policy_lag": draw(st.integers(0, 3)),
            "drop_zero_variance": draw(st.booleans()),
            "max_refill": draw(st.sampled_from([3.0, 6.0])),  # less, and luck alone ends runs as barren
            "max_infra_retries": draw(st.sampled_from([0, 1, 3])),
            "eval_tasks": draw(st.sampled_from([0, 3])),
            "extra_members": draw(st.integers(0, 2)),
            "stragglers": draw(st.sampled_from(list(Stragglers))),
            "straggler_factor": draw(st.sampled_from([1.0, 3.0])),
            "keep_context_s": draw(st.sampled_from([1.0, 20.0])),
            "stall_timeout_s": 7200.0,
        },
    }


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases(), faults, st.integers(0, 3))
def test_every_run_keeps_its_promises(case: dict[str, Any], struck: list[Fault], loop_seed: int) -> None:
    run_with(scenario(**case), struck, loop_seed=loop_seed)


@pytest.mark.parametrize("target", Target)
def test_killing_the_same_thing_again_and_again(target: Target) -> None:
    struck = [Fault(at_s=40.0 + 130 * number, target=target, index=number) for number in range(12)]
    run = run_with(scenario(steps=4, machines=["trainer.step_s=60"]), struck, loop_seed=0)
    assert len(run.lives) > 5 if target is Target.CONTROLLER else len(run.lives) == 1


@pytest.mark.parametrize("success", [0, 1])
def test_a_run_whose_tasks_teach_nothing_ends_and_says_so(success: int) -> None:
    chosen = scenario(
        laws=[f"success={{law: constant, value: {success}}}"], schedule={"drop_zero_variance": True, "max_refill": 1.0}
    )
    with pytest.raises(ExceptionGroup) as caught:
        run_with(chosen, [], loop_seed=0)
    (problem,) = leaves(caught.value)
    assert isinstance(problem, ProcessFailed)
    assert f"groups in a row had equal rewards (mean {success:.2f})" in problem.message
