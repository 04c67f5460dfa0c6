"""What the schedule's settings come to in whole runs: extra members, stragglers, waiting for room, history."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from agentrl.controller.config import Stragglers
from agentrl.controller.scheduling.selection import selection_bias
from agentrl.ledger.ledger import Ledger
from agentrl.ledger.reader import LedgerReader
from agentrl.observe.events import EpisodeCancelled, Event
from agentrl.simulation.faults import Fault, FaultyRun, Target
from agentrl.simulation.figures import Figures
from agentrl.simulation.loop import simulate
from agentrl.simulation.run import Scenario, Simulation, build
from tests.simulation.invariants import batches_are_in_launch_order_when_all_are_waited_for, nothing_is_lost
from tests.simulation.small import scenario


class Seen:
    """An observer that keeps events, and what is open when an episode is cancelled."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)

    @property
    def cancelled(self) -> list[EpisodeCancelled]:
        return [event for event in self.events if isinstance(event, EpisodeCancelled)]


def run(chosen: Scenario) -> tuple[Simulation, LedgerReader, Seen]:
    seen = Seen()

    async def main() -> Simulation:
        simulation = build(chosen, Ledger.take(":memory:"), observer=seen)
        await simulation.run()
        return simulation

    simulation = simulate(main(), seed=0)
    return simulation, LedgerReader.of(simulation.brain.ledger), seen


def figures(chosen: Scenario) -> Figures:
    async def main() -> Figures:
        simulation = build(chosen, Ledger.take(":memory:"))
        await simulation.run()
        return simulation.figures()

    return simulate(main(), seed=0)


def test_the_first_usable_members_make_a_group_and_the_others_leave_nothing_behind() -> None:
    simulation, reader, seen = run(scenario(schedule={"extra_members": 2}))
    usable = Counter(row.group for row in reader.episodes() if row.reward is not None)
    batched = {row.id for row in reader.groups(["batched"])}
    assert {usable[group] for group in batched} == {4}
    assert seen.cancelled
    assert {event.cause for event in seen.cancelled} == {"surplus"}
    rows = {row.id: row for row in reader.episodes()}
    for event in seen.cancelled:
        row = rows[event.episode]
        assert (row.verdict, row.reward, row.cause) == (None, None, "surplus")
        assert (row.num_turns, row.num_tokens) == (event.num_turns, event.num_tokens)
    assert simulation.provider.open == ()
    assert simulation.brain.collector.num_live == 0


def test_extra_members_are_sooner_and_their_bias_is_shown() -> None:
    laws = ["groups=6", "turns.median=8", "turns.cap=40"]
    plain = figures(scenario(steps=1, laws=laws, live=60))
    chosen = scenario(steps=1, laws=laws, live=60, schedule={"extra_members": 2})
    over = figures(chosen)
    assert over.cold_s < plain.cold_s
    assert over.bias_turns < 0
    _, reader, _ = run(chosen)
    bias = selection_bias(reader.episodes(), {row.id for row in reader.groups(["batched"])})
    assert bias is not None
    assert bias.num_cancelled > 0


def test_waiting_for_stragglers_takes_groups_in_launch_order() -> None:
    chosen = scenario(steps=4, schedule={"stragglers": Stragglers.wait})
    _, reader, _ = run(chosen)
    batches_are_in_launch_order_when_all_are_waited_for(chosen, reader)
    assert [row.seq for row in reader.groups(["batched"])] == list(range(16))


def test_cutting_stragglers_closes_groups_without_them_and_says_so() -> None:
    _, reader, seen = run(
        scenario(
            laws=["turns.sigma=1.4", "turns.cap=60", "turns_group_share=0"],
            schedule={"stragglers": Stragglers.cut, "straggler_factor": 2.0},
        )
    )
    assert "straggler" in {event.cause for event in seen.cancelled}
    usable = Counter(row.group for row in reader.episodes() if row.reward is not None)
    sizes = [usable[row.id] for row in reader.groups(["batched"])]
    assert min(sizes) >= 2
    assert min(sizes) < max(sizes) == 4
    nothing_is_lost(reader)


def test_more_live_contexts_than_fit_wait_for_room_and_all_come_to_their_end() -> None:
    class Waiting(Seen):
        most = 0
        simulation: Simulation

        def emit(self, event: Event) -> None:
            self.most = max(self.most, self.simulation.brain.fleet.num_waiting)

    laws = ["max_episode_tokens=19000", "prompt_tokens=6000", "turns.median=6"]
    tight = ["engine.context_tokens=20000", "engine.kv_tokens=30000"]
    chosen = scenario(steps=1, live=20, laws=laws, machines=tight)

    async def main() -> tuple[int, int]:
        waiting = Waiting()
        simulation = waiting.simulation = build(chosen, Ledger.take(":memory:"), observer=waiting)
        await simulation.run()
        batch = LedgerReader.of(simulation.brain.ledger).load_batch(1)
        return waiting.most, len(batch)

    most, trained = simulate(main(), seed=0)
    assert most > 0
    assert trained == 16


def test_a_restarted_controller_knows_the_lengths_that_it_has_seen(tmp_path: Path) -> None:
    chosen = scenario(steps=3)

    async def main() -> FaultyRun:
        faulty = FaultyRun(chosen, tmp_path / "ledger.sqlite")
        await faulty.run([Fault(target=Target.CONTROLLER, at_s=300.0)])
        return faulty

    faulty = simulate(main(), seed=0)
    first, second = faulty.lives
    assert first.brain.recovered.lengths == ()
    assert len(second.brain.recovered.lengths) > 0
