"""A run whose parts fail as they please: what must still hold then is in the tests that use this.

The ledger and the trainer's disk outlive everything; all else starts again when the controller does.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from operator import itemgetter
from pathlib import Path

from agentrl.clock import monotonic
from agentrl.ledger.ledger import Ledger
from agentrl.observe.events import Observer
from agentrl.simulation.loop import kill, running_loop, spawn
from agentrl.simulation.run import Scenario, Simulation, build
from agentrl.simulation.trainer import TrainerDisk
from agentrl.wire import TrainBatch


class Target(StrEnum):
    """What can be killed; and an engine can hang, keep its old weights, or damage the new ones."""

    ENGINE = "engine"
    HANG = "hang"
    STALE = "stale"
    SPOILT = "spoilt"
    SANDBOX = "sandbox"
    TRAINER = "trainer"
    CONTROLLER = "controller"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing goes wrong."""

    target: Target
    at_s: float | None = None
    """When, by the clock."""
    at_round: int | None = None
    """When, by the loop's rounds, if `at_s` is None."""
    index: int = 0
    """Which engine or sandbox, counted round those that there are."""


class FaultyRun:
    """One run through all its controllers' lives. Inside `simulate` only."""

    def __init__(
        self,
        scenario: Scenario,
        ledger: Path,
        *,
        restart_s: float = 10.0,
        observer: Observer | None = None,
    ) -> None:
        """`restart_s`: from the death of a controller to the next one."""
        self._scenario = scenario
        self._ledger = ledger
        self._restart_s = restart_s
        self._observer = observer
        self.trained: list[TrainBatch] = []
        """Every batch that changed the weights, in that order."""
        self.disk = TrainerDisk(on_checkpoint=self.trained.append)
        self.lives: list[Simulation] = []
        """One for each controller so far."""
        self._died = asyncio.Event()
        self._numbers = itertools.count()
        self._node = ""

    async def run(self, faults: Sequence[Fault]) -> None:
        """Until a controller has made the last step. Raises what ends a controller otherwise."""
        for fault in faults:
            if fault.at_round is not None:
                running_loop().call_at_round(fault.at_round, partial(self._strike, fault))
        striking = asyncio.create_task(self._strike_by_clock(faults))
        try:
            await self._live()
            while self._died.is_set():
                await asyncio.sleep(self._restart_s)
                await self._live()
        finally:
            striking.cancel()

    async def _live(self) -> None:
        """One controller's life, to its end or its death."""
        self._node = f"controller-{next(self._numbers)}"  # one may be killed before it counts as a life
        self._died.clear()
        running = spawn(self._node, self._start(), name=self._node)
        died = asyncio.create_task(self._died.wait())
        await asyncio.wait({running, died}, return_when=asyncio.FIRST_COMPLETED)
        died.cancel()
        if running.done():
            self._died.clear()
            running.result()

    async def _start(self) -> None:
        ledger = Ledger.take(self._ledger)
        simulation = build(self._scenario, ledger, disk=self.disk, observer=self._observer)
        self.lives.append(simulation)
        await simulation.run()

    async def _strike_by_clock(self, faults: Sequence[Fault]) -> None:
        for at_s, fault in sorted(((f.at_s, f) for f in faults if f.at_s is not None), key=itemgetter(0)):
            await asyncio.sleep(at_s - monotonic())
            self._strike(fault)

    def _strike(self, fault: Fault) -> None:
        if not self.lives or self._died.is_set():
            return
        simulation = self.lives[-1]
        match fault.target:
            case Target.ENGINE | Target.HANG | Target.STALE | Target.SPOILT:
                engines = simulation.engines
                happens = {
                    Target.ENGINE: engines.kill,
                    Target.HANG: engines.hang,
                    Target.STALE: engines.stick,
                    Target.SPOILT: engines.spoil,
                }
                happens[fault.target](engines.names[fault.index % len(engines.names)])
            case Target.SANDBOX:
                if sandboxes := simulation.provider.open:
                    sandboxes[fault.index % len(sandboxes)].die("killed")
            case Target.TRAINER:
                simulation.trainer.die()
            case Target.CONTROLLER:
                kill(self._node)
                kill(simulation.trainer.node)
                self._died.set()
