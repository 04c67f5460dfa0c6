"""The simulated engine and sandboxes keep the same promises as the real ones."""

from __future__ import annotations

import pytest

from agentrl.simulation.config import load_hardware, load_workload
from agentrl.simulation.engine import SimulatedEngine
from agentrl.simulation.life import World
from agentrl.simulation.loop import simulate
from agentrl.simulation.sandbox import SimulatedProvider
from tests.contracts.engine import ENGINE_CHECKS, PUBLICATION_CHECKS, EngineCheck, PublicationCheck
from tests.contracts.sandbox import SANDBOX_CHECKS, SandboxCheck


def endless(rid: str, ids: list[int]) -> list[int]:
    """A model that never stops."""
    return [1000 + sum(ids[-3:]) % 97] * 4096


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("check", ENGINE_CHECKS, ids=lambda check: check.__name__)
def test_simulated_engine(check: EngineCheck, seed: int) -> None:
    async def main() -> None:
        law = load_hardware("h8", ["engine.context_tokens=2048", "engine.kv_tokens=65536"]).engine
        await check(SimulatedEngine("engine-0", law, endless))

    simulate(main(), seed=seed, horizon_s=3600)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("check", PUBLICATION_CHECKS, ids=lambda check: check.__name__)
def test_publication_to_a_simulated_engine(check: PublicationCheck, seed: int) -> None:
    async def main() -> None:
        law = load_hardware("h8", ["engine.context_tokens=2048", "engine.kv_tokens=65536"]).engine
        await check(SimulatedEngine("engine-0", law, endless), "/weights")

    simulate(main(), seed=seed, horizon_s=3600)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("check", SANDBOX_CHECKS, ids=lambda check: check.__name__)
def test_simulated_sandboxes(check: SandboxCheck, seed: int) -> None:
    async def main() -> None:
        world = World(load_workload("w_tb"), seed=seed)
        await check(SimulatedProvider(world, starts_at_once=32, start_timeout_s=700.0))

    simulate(main(), seed=seed, horizon_s=3600)
