"""Weights change while requests run: what each policy makes of them, and what holds whatever dies meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from agentrl.controller.config import InFlight, PublishMethod
from agentrl.controller.fleet.fleet import Fleet
from agentrl.controller.fleet.state import EngineState
from agentrl.controller.fleet.weights import Weights
from agentrl.inference.engine import FinishReason, Generation, SamplingParams
from agentrl.ledger.reader import LedgerReader
from agentrl.observe.events import Event, Published, StepApplied, Warned
from agentrl.rollout.active_time import ActiveTime
from agentrl.simulation.engine import SimulatedEngine
from agentrl.simulation.faults import Fault, FaultyRun, Target
from agentrl.simulation.loop import running_loop, simulate
from agentrl.simulation.run import Scenario
from tests.simulation.invariants import check
from tests.simulation.small import hardware, scenario

LAW = hardware("engine.request_s=0.5", "engine.update_weights_s=3").engine
LENGTHS = (100, 400, 900, 2000)
"""Of the messages of four episodes, in tokens."""
T = TypeVar("T")


class Flight:
    """A fleet of two engines, and four episodes that each ask for one message."""

    def __init__(self, in_flight: InFlight, *, turn_timeout_s: float = 600.0) -> None:
        self.failed: list[str] = []
        self.fleet = Fleet(
            Weights("/v0", 0),
            ActiveTime(),
            turn_timeout_s=turn_timeout_s,
            control_timeout_s=60,
            on_failure=self.failed.append,
            in_flight=in_flight,
        )
        self.engines = [SimulatedEngine(name, LAW, lambda rid, ids: [7] * 4096) for name in ("a", "b")]
        self.segments: dict[int, list[Generation]] = {}

    async def start(self) -> list[asyncio.Task[None]]:
        """Two seconds into the messages."""
        for engine in self.engines:
            await self.fleet.admit(engine)
        asked = [asyncio.create_task(self._message(number, length)) for number, length in enumerate(LENGTHS)]
        await asyncio.sleep(2)
        return asked

    async def publish(self, version: int) -> None:
        await self.fleet.suspend()
        await self.fleet.publish(Weights(f"/v{version}", version))
        await self.fleet.resume()

    def versions(self, number: int) -> list[int]:
        return [version for segment in self.segments[number] for version in segment.versions]

    async def _message(self, number: int, length: int) -> None:
        """As an episode asks: what is aborted is asked for again, behind what was sampled."""
        ids, segments = [1] * 100, self.segments.setdefault(number, [])
        while sum(len(segment.ids) for segment in segments) < length:
            rid = f"e{number}.t000.s{len(segments):03d}"
            left = length - sum(len(segment.ids) for segment in segments)
            segment = await self.fleet.sample(f"e{number}", rid, list(ids), SamplingParams(max_new_tokens=left))
            segments.append(segment)
            ids += segment.ids


def in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    return simulate(main, seed=0)


@pytest.mark.parametrize("in_flight", InFlight)
def test_each_message_is_whole_and_each_token_has_the_version_that_sampled_it(in_flight: InFlight) -> None:
    async def main() -> Flight:
        flight = Flight(in_flight)
        asked = await flight.start()
        await flight.publish(1)
        await asyncio.sleep(1)
        await flight.publish(2)
        await asyncio.gather(*asked)
        return flight

    flight = in_virtual_time(main())
    assert flight.failed == []
    for number, length in enumerate(LENGTHS):
        versions = flight.versions(number)
        assert len(versions) == length
        assert versions == sorted(versions)
    spans = [len(set(flight.versions(number))) for number in range(len(LENGTHS))]
    segments = [len(flight.segments[number]) for number in range(len(LENGTHS))]
    finishes = {segment.finish for found in flight.segments.values() for segment in found}
    if in_flight is InFlight.drain:
        assert (spans, segments) == ([1] * 4, [1] * 4)
    elif in_flight is InFlight.abort_resume:
        assert max(spans) == max(segments) == 3
        assert finishes == {FinishReason.ABORT, FinishReason.LENGTH}
    else:
        assert max(spans) == 3
        assert (segments, finishes) == ([1] * 4, {FinishReason.LENGTH})


def test_only_in_place_prefills_nothing_again() -> None:
    async def prefilled(in_flight: InFlight) -> int:
        flight = Flight(in_flight)
        asked = await flight.start()
        await flight.publish(1)
        await asyncio.gather(*asked)
        return sum(engine.stats.prefilled_tokens for engine in flight.engines)

    tokens = {in_flight: in_virtual_time(prefilled(in_flight)) for in_flight in InFlight}
    assert tokens[InFlight.drain] < tokens[InFlight.in_place] <= tokens[InFlight.drain] + len(LENGTHS)
    assert min(tokens[InFlight.retract], tokens[InFlight.abort_resume]) > tokens[InFlight.drain] + 300


def test_a_request_after_an_update_in_place_finds_nothing_of_the_old_weights() -> None:
    async def main() -> tuple[Generation, Generation]:
        flight = Flight(InFlight.in_place)
        asked = await flight.start()
        await flight.publish(1)
        await asyncio.gather(*asked)
        short = SamplingParams(max_new_tokens=4)
        first = await flight.fleet.sample("e9", "e9.t000.s000", [1] * 100, short)
        return first, await flight.fleet.sample("e9", "e9.t001.s000", [1] * 100, short)

    first, second = in_virtual_time(main())
    assert (first.cached_tokens, second.cached_tokens) == (0, 99)


def test_engines_that_drain_are_busy_until_their_last_answer_and_held_then() -> None:
    async def main() -> list[EngineState]:
        flight = Flight(InFlight.drain)
        asked = await flight.start()
        seen = [flight.fleet.state("a")]
        flight.fleet.watch(lambda: seen.append(flight.fleet.state("a")))
        suspending = asyncio.create_task(flight.fleet.suspend())
        await asyncio.gather(*asked)
        await suspending
        seen.append(flight.fleet.state("a"))
        return seen

    states = in_virtual_time(main())
    assert set(states) == {EngineState.BUSY, EngineState.HELD}
    assert states == sorted(states)  # "busy" before "held", never back


def test_a_request_that_outlives_its_turns_deadline_is_not_waited_for_any_longer() -> None:
    async def main() -> Flight:
        flight = Flight(InFlight.drain, turn_timeout_s=30.0)
        asked = await flight.start()
        flight.engines[0].hang()
        await flight.publish(1)
        await asyncio.gather(*asked)
        return flight

    flight = in_virtual_time(main())
    assert flight.failed == ["a"]
    assert [len(flight.versions(number)) for number in range(len(LENGTHS))] == list(LENGTHS)


class Seen:
    """An observer that notes warnings, and in which rounds of the loop steps were applied and published."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.rounds: dict[type[Event], list[int]] = {}

    def emit(self, event: Event) -> None:
        self.rounds.setdefault(type(event), []).append(running_loop().num_rounds)
        if isinstance(event, Warned):
            self.warnings.append(event.message)


def struck(chosen: Scenario, folder: Path, faults: list[Fault]) -> Seen:
    """The run, with faults, checked."""
    folder.mkdir(exist_ok=True)
    seen = Seen()

    async def main() -> None:
        run = FaultyRun(chosen, folder / "ledger.sqlite", observer=seen)
        await run.run(faults)
        check(run, chosen, LedgerReader.of(run.lives[-1].brain.ledger))

    simulate(main(), seed=0)
    return seen


def steps_of(in_flight: InFlight, **publish: Any) -> Scenario:
    return scenario(
        steps=3,
        laws=["groups=2", "turns.median=3"],
        machines=["engine.update_weights_s=20", "trainer.step_s=20"],
        schedule={"max_policy_lag": 4, "stall_timeout_s": 20_000.0},
        publish={"in_flight": in_flight, **publish},
    )


@pytest.mark.parametrize("target", [Target.CONTROLLER, Target.TRAINER, Target.ENGINE, Target.HANG])
@pytest.mark.parametrize("in_flight", InFlight)
def test_a_run_keeps_its_promises_under_every_policy(in_flight: InFlight, target: Target, tmp_path: Path) -> None:
    struck(steps_of(in_flight), tmp_path, [Fault(at_s=at_s, target=target) for at_s in (150.0, 400.0, 650.0)])


WRONG = [Fault(at_s=1.0, target=target, index=1) for target in (Target.STALE, Target.SPOILT)]


@pytest.mark.parametrize("fault", WRONG, ids=lambda fault: fault.target)
@pytest.mark.parametrize("in_flight", InFlight)
def test_an_engine_with_wrong_weights_is_named_and_nothing_it_says_is_trained_on(
    in_flight: InFlight, fault: Fault, tmp_path: Path
) -> None:
    seen = struck(steps_of(in_flight), tmp_path, [fault])
    (warning,) = seen.warnings
    assert warning.startswith("engine-1 is quarantined: log-probs differ by ")
    assert warning.endswith("stale or perturbed, nothing is known of the weights before"), "version 0 has no probe"


@pytest.mark.parametrize(
    ("target", "named"),
    [
        (Target.STALE, "stale, these are the weights of version 1"),
        (Target.SPOILT, "perturbed, its weights are not those that were published"),
    ],
)
def test_an_engine_is_named_by_what_is_wrong_with_it(target: Target, named: str, tmp_path: Path) -> None:
    chosen = steps_of(InFlight.abort_resume)
    first = struck(chosen, tmp_path / "whole", []).rounds[Published][0]
    seen = struck(chosen, tmp_path / "struck", [Fault(at_round=first + 1, target=target, index=1)])
    (warning,) = seen.warnings
    assert warning.endswith(named)


@pytest.mark.parametrize("fault", WRONG, ids=lambda fault: fault.target)
def test_without_the_probe_nobody_would_notice(fault: Fault, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        struck(steps_of(InFlight.abort_resume, probe=False), tmp_path, [fault])


METHODS: dict[str, dict[str, Any]] = {
    "storage": {},
    "direct": {"method": PublishMethod.direct, "storage_every": 2},
}
"""`direct` stores no first version: it is in the trainer's memory only."""


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("target", [Target.CONTROLLER, Target.TRAINER, Target.ENGINE])
def test_a_kill_between_any_two_messages_of_a_publication_keeps_every_promise(
    target: Target, method: str, tmp_path: Path
) -> None:
    """From the report of a step to its publication, one run for each round of the loop."""
    chosen = scenario(
        steps=3,
        live=3,
        window_groups=2,
        laws=["groups=1", "group_size=2", "turns.median=1", "turns.cap=2"],
        machines=["trainer.step_s=7"],
        schedule={"swing": "none", "max_policy_lag": 3, "stall_timeout_s": 7200.0},
        publish={"in_flight": InFlight.in_place, **METHODS[method]},
    )
    rounds = struck(chosen, tmp_path / "whole", []).rounds
    applied, published = rounds[StepApplied][0], rounds[Published][0]
    assert published - applied > 10
    for number in range(applied - 1, published + 2):
        struck(chosen, tmp_path / str(number), [Fault(target=target, at_round=number)])


@pytest.mark.parametrize("swing", ["none", "1", "all"])
@pytest.mark.parametrize("target", [Target.CONTROLLER, Target.TRAINER, Target.ENGINE, Target.HANG])
def test_what_only_the_trainer_has_survives_whoever_dies(target: Target, swing: str, tmp_path: Path) -> None:
    """No version but the first and the last is stored; faults come at all times of a step."""
    chosen = scenario(
        steps=4,
        laws=["groups=2", "turns.median=3"],
        machines=["engine.update_weights_s=20", "trainer.step_s=20"],
        schedule={"swing": swing, "max_policy_lag": 4, "stall_timeout_s": 20_000.0},
        publish={"method": PublishMethod.shared, "storage_every": 100},
    )
    for number in range(4):
        at = [100.0 + 37.0 * number + 310.0 * k for k in range(3)]
        struck(chosen, tmp_path / str(number), [Fault(at_s=at_s, target=target, index=number) for at_s in at])


def test_changes_between_whole_folders_are_read_in_order_by_an_engine_that_was_restarted(tmp_path: Path) -> None:
    chosen = steps_of(InFlight.abort_resume, storage_every=2, delta=True)
    struck(chosen, tmp_path, [Fault(at_s=at_s, target=Target.ENGINE) for at_s in (150.0, 400.0, 650.0)])
