"""Ways to collect batches, by name, and what each of them comes to on a workload: what comparisons are made of."""

from __future__ import annotations

import math
from enum import StrEnum

from agentrl.ledger.ledger import Ledger
from agentrl.simulation.baselines import Baseline, run_baseline
from agentrl.simulation.config import Hardware, Workload
from agentrl.simulation.figures import WARM_UP_BATCHES, Figures
from agentrl.simulation.loop import simulate
from agentrl.simulation.run import Scenario, build, reference_config

OVER_PROVISION = 1.25
_STEADY_WINDOW_BATCHES = 4
"""Groups open at once, in batches: so wide that stragglers do not keep live episodes below their limit."""
STEADY_STEPS = WARM_UP_BATCHES + 5


class Policy(StrEnum):
    """All but the baselines are this project's controller, with sticky routing, warm sandboxes and hygiene."""

    NAIVE = "naive"
    """Every episode by itself: see `baselines`."""
    BARRIER = "barrier"
    """The same with two barriers."""
    KEEP_ALL = "keep_all"
    """One batch, no more groups launched than it takes."""
    OVER = "over_1.25"
    """One batch, from 1.25 times as many groups, episodes and sandboxes."""
    STEADY = "steady"
    """Batch after batch with carry-over, 1.25 times a batch's episodes live."""


def measure(policy: Policy, workload: Workload, hardware: Hardware, *, seed: int) -> Figures:
    """One run of a policy. Equal seeds draw equal episodes for all policies."""
    match policy:
        case Policy.NAIVE:
            return _baseline(Baseline.NAIVE, workload, hardware, seed)
        case Policy.BARRIER:
            return _baseline(Baseline.BARRIER, workload, hardware, seed)
        case Policy.KEEP_ALL:
            return _controller(workload, hardware, seed, over=1.0, window_batches=1.0, steps=1)
        case Policy.OVER:
            return _controller(workload, hardware, seed, over=OVER_PROVISION, window_batches=OVER_PROVISION, steps=1)
        case Policy.STEADY:
            return _controller(
                workload, hardware, seed, over=OVER_PROVISION, window_batches=_STEADY_WINDOW_BATCHES, steps=STEADY_STEPS
            )


def _baseline(baseline: Baseline, workload: Workload, hardware: Hardware, seed: int) -> Figures:
    batch = workload.groups * workload.group_size
    config = reference_config(
        workload, hardware, seed=seed, steps=1, window_groups=workload.groups, live=min(batch, hardware.sandboxes)
    )
    scenario = Scenario(config=config, workload=workload, hardware=hardware)
    return simulate(run_baseline(baseline, scenario), seed=seed)


def _controller(
    workload: Workload, hardware: Hardware, seed: int, *, over: float, window_batches: float, steps: int
) -> Figures:
    config = reference_config(
        workload,
        hardware,
        seed=seed,
        steps=steps,
        window_groups=math.ceil(window_batches * workload.groups),
        live=math.ceil(over * min(workload.groups * workload.group_size, hardware.sandboxes)),
    )
    scenario = Scenario(config=config, workload=workload, hardware=hardware, warm=True, hygiene=True)

    async def run() -> Figures:
        simulation = build(scenario, Ledger.take(":memory:"))
        await simulation.run()
        return simulation.figures()

    return simulate(run(), seed=seed)
