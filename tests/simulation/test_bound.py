"""The bound of a draw: by requests where KV is plenty, by KV where it is not; never beaten."""

from __future__ import annotations

import pytest

from agentrl.simulation.bound import bound, engine_s
from agentrl.simulation.config import load_hardware, load_workload
from agentrl.simulation.life import World
from agentrl.simulation.policies import Policy, measure
from tests.simulation import small

W_TB = load_workload("w_tb")
LIVES = [World(W_TB, seed=0).life(group, member, 0) for group in range(8) for member in range(8)]


def engines(kv_tokens: int) -> float:
    return engine_s(LIVES, W_TB, load_hardware("h8", [f"engine.kv_tokens={kv_tokens}"]).engine)


def test_with_less_kv_fewer_requests_share_a_step() -> None:
    assert engines(150_000) > engines(300_000) > engines(600_000) > engines(10**7)
    assert engines(10**7) == engines(10**8)


def test_it_is_shared_by_the_engines_and_spread_over_the_batches() -> None:
    hardware = load_hardware("h8")
    whole = bound(LIVES, W_TB, hardware, sandboxes=64, warm=True, carry_over=True)
    halves = bound(LIVES, W_TB, hardware, sandboxes=64, warm=True, carry_over=True, batches=2)
    assert halves.engines == pytest.approx(whole.engines / 2)
    assert whole.longest == 0.0


@pytest.mark.parametrize("policy", [Policy.NAIVE, Policy.KEEP_ALL, Policy.OVER])
def test_no_policy_beats_it(policy: Policy) -> None:
    figures = measure(policy, small.workload("turns.median=8"), small.hardware(), seed=1)
    assert figures.bound_s <= figures.cold_s
