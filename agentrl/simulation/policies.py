"""Ways to collect batches, by name, and what each of them comes to on a workload: what comparisons are made of."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from agentrl.controller.config import Stragglers
from agentrl.ledger.ledger import Ledger
from agentrl.simulation.baselines import Baseline, run_baseline
from agentrl.simulation.config import Hardware, Workload
from agentrl.simulation.figures import WARM_UP_BATCHES, Figures
from agentrl.simulation.loop import simulate
from agentrl.simulation.run import Scenario, build, reference_config

OVER_PROVISION = 1.25
"""Episodes that may be started, or be live, for one that a batch takes."""
POOL_FILLS_S = 600.0
"""Time before collecting begins, which no policy's figures count: the warm pool stands filled, as in a running job."""
STEADY_STEPS = WARM_UP_BATCHES + 5
_NO_LIMIT = 1e9


class Policy(StrEnum):
    """All but the baselines are this project's controller. `only_*` and `full_no_*` show single mechanisms."""

    NAIVE = "naive"
    """Every episode by itself: see `baselines`."""
    BARRIER = "barrier"
    """The same with two barriers."""
    KEEP_ALL = "keep_all"
    """One batch, no more groups launched than it takes."""
    OVER = "over_1.25"
    """One batch, from at most 1.25 times as many episodes: more groups, and one more member in each."""
    FULL = "full"
    """Batch after batch with carry-over, at most 1.25 times a batch's episodes live."""

    ONLY_ROUTING = "only_routing"
    """One batch as naive, but episodes stay where their context is."""
    ONLY_WARM_POOL = "only_warm_pool"
    """One batch as naive, but sandboxes were started before."""
    ONLY_HYGIENE = "only_hygiene"
    """One batch as naive, but sandboxes are health-checked and reaped."""
    OVER_GROUPS = "over_groups"
    """One batch from 1.25 times as many groups, without more members."""
    OVER_MEMBERS = "over_members"
    """One batch from 1.25 times as many members in each group, without more groups."""
    FULL_NO_ROUTING = "full_no_routing"
    """Requests go round the engines."""
    FULL_NO_WARM_POOL = "full_no_warm_pool"
    """Sandboxes are started when they are needed."""
    FULL_NO_HYGIENE = "full_no_hygiene"
    """Sandboxes fail as often as untreated."""
    FULL_NO_ADMISSION = "full_no_admission"
    """All 1.25 times as many live, whatever the KV cache holds."""
    FULL_NO_ORDER = "full_no_order"
    """Batches take groups in launch order, and wait for their stragglers."""
    FULL_NO_CARRY_OVER = "full_no_carry_over"
    """No group starts before the batch of the one before it is complete."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """What a policy does, as settings."""

    routing: bool = True
    warm: bool = True
    hygiene: bool = True
    admission: bool = True
    window_batches: float = 1.0
    """Groups open at once, in batches."""
    extra_members: int = 0
    stragglers: Stragglers = Stragglers.carry
    steps: int = 1


_NAIVE = Way(routing=False, warm=False, hygiene=False, admission=False)
_FULL = Way(window_batches=4.0, steps=STEADY_STEPS)
"""The window is so wide that stragglers do not keep live episodes below their limit."""
WAYS = {
    Policy.KEEP_ALL: Way(),
    Policy.OVER: Way(window_batches=35 / 32, extra_members=1),
    Policy.FULL: _FULL,
    Policy.ONLY_ROUTING: replace(_NAIVE, routing=True),
    Policy.ONLY_WARM_POOL: replace(_NAIVE, warm=True),
    Policy.ONLY_HYGIENE: replace(_NAIVE, hygiene=True),
    Policy.OVER_GROUPS: Way(window_batches=OVER_PROVISION),
    Policy.OVER_MEMBERS: Way(extra_members=2),
    Policy.FULL_NO_ROUTING: replace(_FULL, routing=False),
    Policy.FULL_NO_WARM_POOL: replace(_FULL, warm=False),
    Policy.FULL_NO_HYGIENE: replace(_FULL, hygiene=False),
    Policy.FULL_NO_ADMISSION: replace(_FULL, admission=False),
    Policy.FULL_NO_ORDER: replace(_FULL, stragglers=Stragglers.wait),
    Policy.FULL_NO_CARRY_OVER: replace(_FULL, window_batches=1.0),
}
"""35 groups of 9 members are 1.23 times 32 groups of 8: the mixture that is soonest complete, of those within 1.25."""


MAX_POLICY_LAG = 8
"""Steps by which a trained token may be behind; groups beyond are dropped. Ten seeds of `full` come to 6."""


def measure(policy: Policy, workload: Workload, hardware: Hardware, *, seed: int) -> Figures:
    """One run of a policy. Equal seeds draw equal episodes for all policies."""
    match policy:
        case Policy.NAIVE:
            return _baseline(Baseline.NAIVE, workload, hardware, seed)
        case Policy.BARRIER:
            return _baseline(Baseline.BARRIER, workload, hardware, seed)
        case _:
            return _controller(scenario_of(WAYS[policy], workload, hardware, seed=seed))


def _baseline(baseline: Baseline, workload: Workload, hardware: Hardware, seed: int) -> Figures:
    batch = workload.groups * workload.group_size
    config = reference_config(
        workload, hardware, seed=seed, steps=1, window_groups=workload.groups, live=min(batch, hardware.sandboxes)
    )
    scenario = Scenario(config=config, workload=workload, hardware=hardware)
    return simulate(run_baseline(baseline, scenario), seed=seed)


def scenario_of(way: Way, workload: Workload, hardware: Hardware, *, seed: int) -> Scenario:
    """The reference job of a workload, done that way."""
    batch = workload.groups * workload.group_size
    over = OVER_PROVISION if way.window_batches > 1 or way.extra_members else 1.0
    live = math.ceil(over * min(batch, hardware.sandboxes))
    config = reference_config(
        workload,
        hardware,
        seed=seed,
        steps=way.steps,
        window_groups=math.ceil(way.window_batches * workload.groups),
        live=live,
        warm_max=live if way.warm else 0,
    )
    schedule = replace(
        config.schedule,
        extra_members=way.extra_members,
        stragglers=way.stragglers,
        max_policy_lag=MAX_POLICY_LAG,
    )
    if not way.admission:
        schedule = replace(schedule, kv_share=_NO_LIMIT)
    return Scenario(
        config=replace(config, schedule=schedule),
        workload=workload,
        hardware=hardware,
        hygiene=way.hygiene,
        routing=way.routing,
        engine_start_s=POOL_FILLS_S,
    )


def _controller(scenario: Scenario) -> Figures:
    async def run() -> Figures:
        simulation = build(scenario, Ledger.take(":memory:"))
        await simulation.run()
        return simulation.figures()

    return simulate(run(), seed=scenario.config.seed)
