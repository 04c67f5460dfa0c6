"""Watches fleet, collector and trainer desk, and writes down what the GPUs' time went to.

An observer: what events tell is looked up again at each of them. The ledger gets sums by step, lane and use when a
step's phase ends, so that rows are bounded and a killed controller loses at most what one phase took.
"""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.clock import monotonic, wall
from agentrl.controller.balance.gpu_time import TRAINER, GpuTime, Moment, Spent, uses
from agentrl.controller.fleet.fleet import Fleet
from agentrl.controller.scheduling.collector import Collector
from agentrl.controller.trainer_desk import TrainerDesk
from agentrl.ledger.accounts import Accounts, GpuTimeRow
from agentrl.observe.events import BatchReady, Evaluated, Event, GpuTimeSpent, Observer, Phase, Published, StepApplied


class GpuAccount:
    """One life of a controller. Attach it with `start`; then it is told of every event."""

    def __init__(
        self,
        lanes: Mapping[str, int],
        *,
        fleet: Fleet,
        collector: Collector,
        desk: TrainerDesk,
        accounts: Accounts,
        observer: Observer,
    ) -> None:
        """`lanes`: the engines, and `trainer` where it has GPUs of its own, each with its number of GPUs."""
        self._lanes = lanes
        self._engines = tuple(name for name in lanes if name != TRAINER)
        self._swing = frozenset(fleet.swing)
        self._fleet = fleet
        self._collector = collector
        self._desk = desk
        self._accounts = accounts
        self._observer = observer
        self._evaluating = False
        self._step = 0
        self._time: GpuTime | None = None

    def start(self) -> None:
        """Time counts from now on."""
        self._time = GpuTime(monotonic())
        self._fleet.watch(self._look)
        self._desk.watch(self._look)
        self._look()

    def emit(self, event: Event) -> None:
        if self._time is None or isinstance(event, GpuTimeSpent):
            return
        if isinstance(event, Phase):
            self._evaluating = event.phase == "evaluating"
        self._look()
        match event:
            case BatchReady() | StepApplied():
                self.settle(event.step)
            case Published():
                self.settle(event.version)
            case Evaluated():
                self.settle(self._step)

    def settle(self, step: int | None = None) -> None:
        """Write down what was spent since the last time, for a step; for the last one by default."""
        if self._time is None:
            return
        self._step = self._step if step is None else step
        offset_s = wall() - monotonic()
        rows = [self._row(spent, offset_s) for spent in self._time.take(monotonic())]
        if rows:
            self._accounts.add_gpu_time(rows)
            self._observer.emit(_event(self._step, rows))

    def _row(self, spent: Spent, offset_s: float) -> GpuTimeRow:
        return GpuTimeRow(
            lane=spent.lane,
            step=self._step,
            use=spent.use.value,
            num_gpus=self._lanes[spent.lane],
            began_at=spent.began_s + offset_s,
            spent_us=spent.spent_us,
        )

    def _look(self) -> None:
        assert self._time is not None
        moment = Moment(
            engines={name: self._fleet.state(name) for name in self._engines},
            lent=self._fleet.lent,
            swing=self._swing,
            training=self._desk.busy,
            live=self._evaluating or self._collector.num_live > 0,
            may_launch=self._evaluating or self._collector.may_launch,
        )
        self._time.set(uses(moment), monotonic())


def _event(step: int, rows: list[GpuTimeRow]) -> GpuTimeSpent:
    gpu_s: dict[str, float] = {}
    for row in rows:
        gpu_s[row.use] = gpu_s.get(row.use, 0.0) + row.num_gpus * row.spent_us / 1e6
    return GpuTimeSpent(step=step, gpu_s=gpu_s)
