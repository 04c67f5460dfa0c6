"""Swing engines go to the trainer and come back, whatever happens to them on the way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentrl.clock import monotonic
from agentrl.controller.fleet.fleet import Fleet
from agentrl.controller.fleet.places import Places
from agentrl.controller.fleet.state import EngineState
from agentrl.controller.fleet.weights import Weights
from agentrl.errors import EngineError
from agentrl.inference.engine import FinishReason, Generation, SamplingParams
from agentrl.ledger.accounts import read_balance, read_gpu_time
from agentrl.ledger.reader import LedgerReader
from agentrl.rollout.active_time import ActiveTime
from agentrl.rollout.hold import Hold
from agentrl.sandbox.provider import Image, SandboxSpec
from agentrl.simulation.engine import SimulatedEngine
from agentrl.simulation.faults import Fault, FaultyRun, Target
from agentrl.simulation.life import World
from agentrl.simulation.loop import simulate
from agentrl.simulation.sandbox import SimulatedProvider, SimulatedSandbox
from tests.simulation.invariants import check
from tests.simulation.small import hardware, scenario, workload

LAW = hardware("engine.request_s=0.5", "engine.update_weights_s=3", "engine.step_s=0.1").engine
SPEC = SandboxSpec(image=Image())


def new_engine(name: str) -> SimulatedEngine:
    return SimulatedEngine(name, LAW, lambda rid, ids: [7] * 100)


def new_fleet(failed: list[str] | None = None, *, kv_share: float = 1.0) -> Fleet:
    return Fleet(
        Weights("/v0", 0),
        ActiveTime(),
        turn_timeout_s=600,
        control_timeout_s=60,
        on_failure=(failed if failed is not None else []).append,
        swing=("swing",),
        places=Places(kv_share=kv_share),
    )


async def two_engines(fleet: Fleet) -> tuple[SimulatedEngine, SimulatedEngine]:
    """The swing engine and the dedicated one."""
    swing, dedicated = new_engine("swing"), new_engine("dedicated")
    await fleet.admit(swing)
    await fleet.admit(dedicated)
    return swing, dedicated


async def sample(fleet: Fleet, episode: str, *, tokens: int = 100, hold: Hold | None = None) -> Generation:
    """A whole message, over as many requests as it takes."""
    generation = await fleet.sample(episode, f"{episode}.t", [1], SamplingParams(max_new_tokens=tokens), hold)
    while generation.finish is FinishReason.ABORT:
        generation = await fleet.sample(episode, f"{episode}.t", [1], SamplingParams(max_new_tokens=tokens), hold)
    return generation


async def new_sandbox() -> SimulatedSandbox:
    provider = SimulatedProvider(World(workload(), seed=0), starts_at_once=1, start_timeout_s=60)
    return await provider.create(SPEC)


def test_episodes_of_a_lent_engine_go_on_with_the_others_and_come_back_to_new_weights() -> None:
    async def main() -> None:
        fleet = new_fleet()
        await two_engines(fleet)
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(sample(fleet, f"e{number}")) for number in range(4)]
            await asyncio.sleep(3)
            await fleet.lend()
            assert fleet.state("swing") is EngineState.LENT
            assert (fleet.num_up, fleet.kv_capacity_tokens) == (1, LAW.kv_tokens)
        assert all(task.result().versions[-1] == 0 for task in running)
        await fleet.suspend()
        await fleet.publish(Weights("/v1", 1))
        await fleet.resume()
        await fleet.take_back()
        assert fleet.num_up == 2
        later = [await sample(fleet, f"f{number}") for number in range(4)]
        assert all(set(generation.versions) == {1} for generation in later)

    simulate(main(), seed=0)


def test_an_engine_that_comes_back_during_the_publication_serves_the_new_weights() -> None:
    async def main() -> None:
        fleet = new_fleet()
        await two_engines(fleet)
        await fleet.lend()
        async with asyncio.TaskGroup() as group:
            group.create_task(fleet.take_back())
            await fleet.suspend()
            await fleet.publish(Weights("/v1", 1))
            await fleet.resume()
        assert fleet.num_up == 2
        assert all([set((await sample(fleet, f"e{n}")).versions) == {1} for n in range(4)])

    simulate(main(), seed=0)


def test_without_another_engine_episodes_wait_with_clock_and_sandbox_standing_still() -> None:
    async def main() -> None:
        fleet, run_time = new_fleet(), ActiveTime()
        await fleet.admit(new_engine("swing"))
        sandbox = await new_sandbox()
        hold = Hold(sandbox, run_time)
        await fleet.lend()
        before = hold.active_now()
        waiting = asyncio.create_task(sample(fleet, "e", tokens=1, hold=hold))
        await asyncio.sleep(5000)
        assert hold.active_now() == before
        command = asyncio.create_task(sandbox.exec("sleep 1", timeout_s=10))
        await asyncio.sleep(100)
        assert not command.done(), "the sandbox is frozen"
        await fleet.take_back()
        assert (await waiting).finish is FinishReason.LENGTH
        assert (await command).exit_code == 0
        assert hold.active_now() - before < 60

    simulate(main(), seed=0)


def test_only_as_many_contexts_move_as_fit_and_the_oldest_first() -> None:
    async def main() -> None:
        fleet = new_fleet(kv_share=2.5 / LAW.kv_tokens)  # two contexts of one token each
        await two_engines(fleet)
        await fleet.lend()
        order: list[str] = []

        async def one(episode: str) -> None:
            await sample(fleet, episode)
            order.append(episode)
            fleet.forget(episode)

        async with asyncio.TaskGroup() as group:
            for episode in ("e2", "e0", "e3", "e1"):
                group.create_task(one(episode))
                await asyncio.sleep(0)
            await asyncio.sleep(1)
            assert fleet.num_waiting == 2
        assert set(order[:2]) == {"e2", "e0"}
        assert order[2:] == ["e1", "e3"]

    simulate(main(), seed=0)


@pytest.mark.parametrize("delay_s", [delay / 10 for delay in range(0, 90, 3)])
def test_an_engine_that_comes_around_lending_and_return_ends_where_it_should(delay_s: float) -> None:
    async def main() -> None:
        fleet = new_fleet()
        await fleet.admit(new_engine("dedicated"))

        async def admit_late() -> None:
            await asyncio.sleep(delay_s)
            await fleet.admit(new_engine("swing"))

        async with asyncio.TaskGroup() as group:
            late = group.create_task(admit_late())
            await fleet.lend()
            await asyncio.sleep(2)
            if late.done():
                assert fleet.state("swing") is EngineState.LENT
            await fleet.suspend()
            await fleet.publish(Weights("/v1", 1))
            await fleet.resume()
            await fleet.take_back()
        async with asyncio.timeout(60):
            generations = [await sample(fleet, f"e{number}") for number in range(4)]
        assert [set(generation.versions) for generation in generations] == [{1}] * 4
        assert fleet.num_up == 2
        assert fleet.state("swing") is EngineState.FREE

    simulate(main(), seed=0)


@pytest.mark.parametrize("delay_s", [delay / 4 for delay in range(0, 28)])
def test_an_engine_lost_around_lending_and_return_is_reported_and_replaced(delay_s: float) -> None:
    async def main() -> None:
        failed: list[str] = []
        fleet = new_fleet(failed)
        swing, _ = await two_engines(fleet)

        async def lose_and_replace() -> None:
            await asyncio.sleep(delay_s)
            swing.die()
            fleet.dismiss("swing")
            await fleet.admit(new_engine("swing"))

        async with asyncio.TaskGroup() as group:
            group.create_task(lose_and_replace())
            await fleet.lend()
            await fleet.take_back()
        assert fleet.state("swing") is EngineState.FREE, "a failure of the lost one does not count against the new one"
        assert failed == []
        assert {(await sample(fleet, f"e{n}")).versions[0] for n in range(4)} == {0}

    simulate(main(), seed=0)


def test_a_request_that_reaches_an_engine_too_late_moves_on() -> None:
    async def main() -> None:
        fleet = new_fleet()
        await fleet.admit(new_engine("swing"))
        late = asyncio.create_task(sample(fleet, "e", tokens=1))
        await asyncio.sleep(0)  # on its way: it arrives after the pause
        lending = asyncio.create_task(fleet.lend())
        await fleet.admit(new_engine("dedicated"))
        await lending
        began = monotonic()
        assert (await late).finish is FinishReason.LENGTH
        assert monotonic() - began < 10

    simulate(main(), seed=0)


def test_an_engine_that_cannot_give_up_its_memory_leaves_the_fleet() -> None:
    class Stubborn(SimulatedEngine):
        async def release_memory(self) -> None:
            raise EngineError("no")

    async def main() -> None:
        failed: list[str] = []
        fleet = new_fleet(failed)
        await fleet.admit(Stubborn("swing", LAW, lambda rid, ids: [7]))
        await fleet.admit(new_engine("dedicated"))
        await fleet.lend()
        assert failed == ["swing"]
        assert fleet.state("swing") is EngineState.DOWN

    simulate(main(), seed=0)


@pytest.mark.parametrize("swing", ["all", "none", "1", "2"])
def test_gpu_time_of_every_lane_adds_up_to_the_run(swing: str, tmp_path: Path) -> None:
    async def main() -> None:
        chosen = scenario(steps=3, schedule={"swing": swing}, machines=["engines=3", "trainer.step_s=40"])
        run = FaultyRun(chosen, tmp_path / "ledger.sqlite")
        faults = [Fault(at_s=300, target=Target.ENGINE), Fault(at_s=400, target=Target.TRAINER)]
        await run.run(faults)
        reader = LedgerReader.of(run.lives[-1].brain.ledger)
        check(run, chosen, reader)
        totals: dict[str, int] = {}
        uses: dict[str, set[str]] = {}
        for row in read_gpu_time(reader):
            totals[row.lane] = totals.get(row.lane, 0) + row.spent_us
            uses.setdefault(row.lane, set()).add(row.use)
        assert set(totals.values()) == {round(monotonic() * 1e6)}
        swinging = {"all": 3, "none": 0}.get(swing, int(swing) if swing.isdigit() else 0)
        assert set(totals) == {"engine-0", "engine-1", "engine-2"} | (set() if swinging else {"trainer"})
        for index in range(3):
            assert ({"train", "switch"} <= uses[f"engine-{index}"]) is (index < swinging)
        last = {row.step: row for row in read_balance(reader)}  # a review may have taken the place of an earlier one
        assert sorted(last) == [2, 3]
        assert all(row.realised_s is not None for row in last.values())

    simulate(main(), seed=0)


def test_a_swing_engine_is_not_started_while_the_trainer_has_its_memory() -> None:
    async def main() -> None:
        fleet = new_fleet()
        await two_engines(fleet)
        await fleet.lend()
        starting = asyncio.create_task(fleet.until_startable("swing"))
        await fleet.until_startable("dedicated")
        await asyncio.sleep(5000)
        assert not starting.done()
        await fleet.take_back()
        await starting

    simulate(main(), seed=0)


def test_a_lent_engine_that_failed_is_told_again_to_give_up_its_memory() -> None:
    async def main() -> None:
        fleet = new_fleet()
        swing, _ = await two_engines(fleet)
        await fleet.lend()
        fleet.dismiss("swing")
        await swing.resume_memory()  # as a restart does
        await fleet.admit(swing)
        assert fleet.state("swing") is EngineState.LENT
        assert swing._released
        await fleet.take_back()
        assert (await sample(fleet, "e")).versions[-1] == 0

    simulate(main(), seed=0)


def test_an_episode_that_was_carried_over_is_asked_for_first() -> None:
    async def main() -> list[int]:
        seen: list[int] = []

        class Noting(SimulatedEngine):
            async def generate(self, rid: str, input_ids: list[int], params: SamplingParams) -> Generation:
                seen.append(params.priority)
                return await super().generate(rid, input_ids, params)

        fleet = new_fleet()
        await fleet.admit(Noting("dedicated", LAW, lambda rid, ids: [7] * 100))
        await sample(fleet, "old", tokens=1)
        for version in (1, 2):
            await fleet.suspend()
            await fleet.publish(Weights(f"/v{version}", version))
            await fleet.resume()
        await sample(fleet, "old", tokens=1)
        await sample(fleet, "new", tokens=1)
        fleet.forget("old")
        await sample(fleet, "old", tokens=1)
        return seen

    assert simulate(main(), seed=0) == [0, 2, 0, 0]
