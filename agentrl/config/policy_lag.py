"""How old the data of a job will be, from its schedule alone. Pure; docs/decisions/policy_lag.md has the reasons."""

from __future__ import annotations

import math
from dataclasses import dataclass

from agentrl.config.schema import JobConfig
from agentrl.controller.config import Stragglers, num_swing


@dataclass(frozen=True, kw_only=True)
class LagPlan:
    """Versions between a group's oldest token and the weights that it trains."""

    mean: float
    """In the steady state, if no group was dropped for its age."""
    most: int
    """Of any of them."""


def predict_lag(config: JobConfig) -> LagPlan:
    """Little's law: where G groups leave a step and L are in flight, each is in flight for L / G steps.

    In flight are the open and the ready groups: as many as the window holds, or fewer where max_live_episodes start no
    more (their own, and as many again as make a batch whose last members still act or that wait to be taken). With all
    engines lent to the trainer nothing is started between a batch and the version that it makes, so one step less
    counts. Groups dropped without being trained leave sooner: with many of them lag is lower.
    """
    schedule = config.schedule
    members = config.algorithm.group_size + schedule.extra_members
    in_flight = min(schedule.window_groups, schedule.max_live_episodes / members + schedule.groups_per_step)
    colocated = num_swing(schedule.swing, config.inference.num_engines) >= config.inference.num_engines
    steps = max(in_flight / schedule.groups_per_step, 1.0)
    mean = steps - 1 if colocated else steps
    most = schedule.max_policy_lag
    if schedule.stragglers is Stragglers.wait or in_flight <= schedule.groups_per_step:  # nobody is overtaken
        most = min(most, math.ceil(steps) - 1 if colocated else math.ceil(steps))
    return LagPlan(mean=round(mean, 2), most=most)
