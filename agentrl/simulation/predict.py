"""What a job would come to: its controller in virtual time, measured as a real run is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, TextIO

from agentrl.clock import monotonic
from agentrl.controller.config import Stragglers
from agentrl.controller.scheduling.admission import max_live_episodes
from agentrl.errors import AgentrlError
from agentrl.ledger.accounts import read_gpu_time
from agentrl.ledger.ledger import Ledger
from agentrl.ledger.reader import LedgerReader
from agentrl.observe.events import Event, Observer, Observers
from agentrl.simulation.bound import Bound, bound
from agentrl.simulation.figures import WARM_UP_BATCHES, Figures
from agentrl.simulation.loop import START_S, simulate
from agentrl.simulation.run import Scenario, Simulation, build
from agentrl.simulation.tongue import parse_episode


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """One simulated run. Times in seconds."""

    time_to_batch_s: tuple[float, ...]
    """By step: from the last publication, or the start, to a complete batch."""
    step_s: tuple[float, ...]
    """By step: from publication to publication, or from the start."""
    trained_per_step: float
    """Episodes in a batch."""
    lag_p95: int
    """Steps between the oldest token of a trained episode and the version it trains, at most for 95 %."""
    lag_max: int
    gpu_s: dict[str, float]
    """GPU seconds by use; they add up to the time of all GPUs."""
    bound: Bound
    """Of one batch, by resource."""
    figures: Figures

    @property
    def later(self) -> slice:
        """The steps of the steady state: without the first three where there are more."""
        return slice(WARM_UP_BATCHES if len(self.step_s) > WARM_UP_BATCHES else 0, None)

    @property
    def steady_step_s(self) -> float:
        """Mean time of a step in the steady state."""
        steps = self.step_s[self.later]
        return sum(steps) / len(steps)

    @property
    def steady_time_to_batch_s(self) -> float:
        times = self.time_to_batch_s[self.later]
        return sum(times) / len(times)


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A simulated run that did not come to its end, as a real one would not."""

    problem: str


Outcome = Predicted | Failed


def predict(scenario: Scenario, *, trace: TextIO | None = None) -> Outcome:
    """Run a scenario to its end. `trace`: a line of JSON for everything that happens, the same for the same seed."""

    async def main() -> Predicted:
        observer: Observer = Observers() if trace is None else Trace(trace)
        simulation = build(scenario, Ledger.take(":memory:"), observer=observer)
        await simulation.run()
        return _predicted(simulation)

    try:
        return simulate(main(), seed=scenario.config.seed)
    except AgentrlError as error:
        return Failed(problem=str(error))
    except BaseExceptionGroup as group:
        first = _first(group)
        if not isinstance(first, AgentrlError):
            raise
        return Failed(problem=str(first))


def at_seed(scenario: Scenario, seed: int) -> Scenario:
    """The same scenario with other draws."""
    return replace(scenario, config=replace(scenario.config, seed=seed))


_NO_LIMIT = 1e9
"""Of the share of the KV cache."""


class Trace:
    """An `Observer` that writes down events with their virtual time."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def emit(self, event: Event) -> None:
        record = {"at_s": round(monotonic(), 6), "event": event.kind, **asdict(event)}
        self._file.write(json.dumps(record, sort_keys=True) + "\n")


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """Something the controller does that can be turned off, to see what it is worth."""

    name: str
    without: str
    """What happens then."""
    off: Callable[[Scenario], Scenario]


def mechanisms_of(scenario: Scenario) -> list[Mechanism]:
    """Those that a scenario uses."""
    return [mechanism for mechanism in MECHANISMS if mechanism.off(scenario) != scenario]


def _with_schedule(scenario: Scenario, **settings: Any) -> Scenario:
    config = scenario.config
    return replace(scenario, config=replace(config, schedule=replace(config.schedule, **settings)))


def _with_sandbox(scenario: Scenario, **settings: Any) -> Scenario:
    return replace(scenario, config=replace(scenario.config, sandbox=replace(scenario.config.sandbox, **settings)))


def _one_batch_window(scenario: Scenario) -> Scenario:
    schedule = scenario.config.schedule
    return _with_schedule(scenario, window_groups=min(schedule.groups_per_step, schedule.window_groups))


MECHANISMS = (
    Mechanism(
        name="window over groups",
        without="no more groups open than a batch takes, so none is carried over",
        off=_one_batch_window,
    ),
    Mechanism(
        name="batches of any groups",
        without="batches take groups in launch order, and wait for their stragglers",
        off=lambda scenario: _with_schedule(scenario, stragglers=Stragglers.wait),
    ),
    Mechanism(
        name="extra members",
        without="no more episodes in a group than train",
        off=lambda scenario: _with_schedule(scenario, extra_members=0),
    ),
    Mechanism(
        name="warm pool",
        without="sandboxes are started when they are asked for",
        off=lambda scenario: _with_sandbox(scenario, warm_max=0),
    ),
    Mechanism(
        name="admission by KV",
        without="as many episodes live as limits allow, whatever the KV cache holds",
        off=lambda scenario: _with_schedule(scenario, kv_share=_NO_LIMIT),
    ),
    Mechanism(
        name="sticky routing",
        without="requests go round the engines, away from their cached context",
        off=lambda scenario: replace(scenario, routing=scenario.routing and scenario.hardware.engines == 1),
    ),
)


def _predicted(simulation: Simulation) -> Predicted:
    scenario = simulation.scenario
    reader = LedgerReader.of(simulation.brain.ledger)
    steps = reader.steps()
    published = [0.0, *(step.published_at - START_S for step in steps if step.published_at is not None)]
    batched = {row.id: row.step for row in reader.groups(["batched"])}
    trained = [row for row in reader.episodes() if row.group in batched and row.reward is not None]
    lags = sorted((batched[row.group] or 0) - 1 - (row.oldest_version or 0) for row in trained)
    return Predicted(
        time_to_batch_s=tuple(step.time_to_batch_s for step in steps),
        step_s=tuple(end - begin for begin, end in pairwise(published)),
        trained_per_step=len(trained) / len(steps),
        lag_p95=lags[int(0.95 * (len(lags) - 1))],
        lag_max=lags[-1],
        gpu_s=_gpu_s(reader),
        bound=bound(
            [simulation.world.life(*parse_episode(row.id)) for row in trained],
            scenario.workload,
            scenario.hardware,
            sandboxes=max_live_episodes(scenario.config),
            warm=scenario.warm,
            batches=len(steps),
            trainer_gpus=simulation.trainer.num_gpus,
            carry_over=scenario.config.schedule.window_groups > scenario.config.schedule.groups_per_step,
        ),
        figures=simulation.figures(),
    )


def _gpu_s(reader: LedgerReader) -> dict[str, float]:
    spent: Counter[str] = Counter()
    for row in read_gpu_time(reader):
        spent[row.use] += row.num_gpus * row.spent_us
    return {use: spent_us / 1e6 for use, spent_us in sorted(spent.items())}


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
