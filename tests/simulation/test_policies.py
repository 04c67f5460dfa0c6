"""Every named policy runs, on the same episodes, and none pays with lies or losses."""

from __future__ import annotations

import pytest

from agentrl.simulation.config import load_hardware, load_workload
from agentrl.simulation.policies import OVER_PROVISION, WAYS, Policy, measure, scenario_of
from tests.simulation.small import hardware, workload


@pytest.mark.parametrize("policy", Policy)
def test_a_policy_has_its_figures(policy: Policy) -> None:
    figures = measure(policy, workload(), hardware(), seed=0)
    steps = WAYS[policy].steps if policy in WAYS else 1
    assert len(figures.batches_s) == steps
    assert (figures.steady_s is not None) == (steps > 1)
    assert (figures.infra_as_reward, figures.lost) == (0, 0)
    assert 0 < figures.cold_s < 3600


def test_keeping_all_has_no_bias_and_over_provision_is_sooner() -> None:
    laws, machines = workload("groups=8", "turns.median=8", "failure_share_hygiene=0"), hardware()
    keep, over = (measure(policy, laws, machines, seed=3) for policy in (Policy.KEEP_ALL, Policy.OVER))
    assert (keep.bias_turns, keep.bias_tokens) == (0, 0)
    assert over.cold_s < keep.cold_s


@pytest.mark.parametrize("policy", WAYS)
def test_no_policy_has_more_over_provision_than_it_says(policy: Policy) -> None:
    scenario = scenario_of(WAYS[policy], load_workload("w_tb"), load_hardware("h8"), seed=0)
    schedule, batch = scenario.config.schedule, 32 * 8
    assert schedule.max_live_episodes <= OVER_PROVISION * batch
    if schedule.steps == 1:
        started = schedule.window_groups * (8 + schedule.extra_members)
        assert started <= OVER_PROVISION * batch


def test_equal_seeds_are_equal_figures() -> None:
    assert measure(Policy.OVER, workload(), hardware(), seed=5) == measure(Policy.OVER, workload(), hardware(), seed=5)
