"""The parts of the real comparison that need no machine, in virtual time: bookkeeping, trainer, prediction."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.bench import waiting_tasks
from agentrl.bench.real import GROUP_SIZE, GROUPS, job
from agentrl.bench.real_predicted import predict_real
from agentrl.bench.records import LedgerBook, StillTrainer
from agentrl.controller.lifecycle.records import LedgerRecords
from agentrl.ledger.ledger import Ledger
from agentrl.ledger.reader import LedgerReader
from agentrl.rollout.active_time import ActiveTime
from agentrl.rollout.episode import EpisodeRunner
from agentrl.simulation.baselines import RoundRobin, collect_all
from agentrl.simulation.config import load_hardware, load_workload
from agentrl.simulation.engine import SimulatedEngine
from agentrl.simulation.job import simulated_job
from agentrl.simulation.life import World
from agentrl.simulation.loop import START_S, simulate
from agentrl.simulation.run import Scenario, build, tasks
from agentrl.simulation.sandbox import SimulatedProvider
from agentrl.simulation.tongue import SimulatedChat, SimulatedModel

BATCHES = 6


WAITS = """tool_s={law: mixture, cap: 15, parts: [
  {weight: 0.9, of: {law: lognormal, median: 1, sigma: 1.2}},
  {weight: 0.1, of: {law: pareto, minimum: 9, alpha: 1.1}}]}"""


def scenario() -> Scenario:
    """The job of the comparison, with waits as its tasks have them."""
    config = job(Path("/nowhere"), batches=BATCHES, seed=0)
    laws = load_workload("quickstart", [WAITS]), load_hardware("laptop")
    return simulated_job(config, *laws, steps=BATCHES).scenario


def naive(path: Path) -> list[float]:
    """Naive's batches one after the other on simulated edges, written down as on real ones."""
    chosen = scenario()
    config = chosen.config

    async def main() -> list[float]:
        ledger = Ledger.take(path)
        world = World(chosen.workload, seed=0)
        engines = [SimulatedEngine(f"e{n}", chosen.hardware.engine, SimulatedModel(world)) for n in range(2)]
        provider = SimulatedProvider(
            world, starts_at_once=config.sandbox.start_concurrency, start_timeout_s=config.sandbox.start_timeout_s
        )
        runner = EpisodeRunner(
            agent=config.agent,
            chat=SimulatedChat(),
            sampler=RoundRobin(engines),
            provider=provider,
            recorder=LedgerRecords(ledger),
            active_time=ActiveTime(),
        )
        for batch in range(BATCHES):
            await collect_all(
                runner,
                tasks(chosen.workload.prompt_tokens),
                groups=range(batch * GROUPS, (batch + 1) * GROUPS),
                group_size=GROUP_SIZE,
                seed=0,
                book=LedgerBook(ledger),
            )
        reader = LedgerReader.of(ledger)
        times = [(int(row.group[1:]) // GROUPS, row.started_at, row.ended_at) for row in reader.episode_times()]
        ledger.close()
        return [
            max(end for number, _, end in times if number == batch)
            - min(b for number, b, _ in times if number == batch)
            for batch in range(BATCHES)
        ]

    return simulate(main(), seed=0)


def full() -> float:
    """Full's steady interval by the same laws, with a trainer that takes no time."""

    async def main() -> float:
        simulation = build(scenario(), Ledger.take(":memory:"))
        desk, epoch = simulation.brain.desk, simulation.brain.ledger.epoch
        await simulation.brain.run(StillTrainer(desk, epoch=epoch, weights=Path("/weights")))
        ends = [step.assigned_at - START_S for step in LedgerReader.of(simulation.brain.ledger).steps()]
        assert len(ends) == BATCHES
        return (ends[-1] - ends[2]) / (BATCHES - 3)

    return simulate(main(), seed=0)


def test_what_naive_did_predicts_what_full_will_do(tmp_path: Path) -> None:
    measured = naive(tmp_path / "naive.sqlite")
    predicted = predict_real(scenario().config, tmp_path / "naive.sqlite")
    assert predicted.naive_batches_s == pytest.approx(measured, rel=0.1)
    assert predicted.full_steady_s == pytest.approx(full(), rel=0.15)
    assert predicted.ratio < 0.6


def test_tasks_wait_as_long_for_the_same_seed_and_keep_what_they_ask(tmp_path: Path) -> None:
    for name in ("a", "b"):
        waiting_tasks.write(tmp_path / name, count=3, seed=4)
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert [(tmp_path / "a" / file).read_bytes() for file in files] == [
        (tmp_path / "b" / file).read_bytes() for file in files
    ]
    waits = [waiting_tasks.waits(f"boxes-{number:04d}", 4) for number in range(500)]
    longest = max(max(one) for one in waits)
    assert longest == waiting_tasks.WAIT_S.cap, "the tail reaches its cap"
    assert sorted(sum(waits, ()))[1000] < longest / 5, "most commands are quick"


def test_full_keeps_as_many_episodes_live_as_it_has_sandboxes_and_over_provisions() -> None:
    config = job(Path("/tasks"), batches=8, seed=0)
    assert config.schedule.max_live_episodes == config.sandbox.max_sandboxes == round(1.25 * GROUPS * GROUP_SIZE)
    assert config.schedule.window_groups > GROUPS
