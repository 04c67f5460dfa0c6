"""A run whose parts are killed as they please: what must still hold then is in the tests that use this.

The ledger and the trainer's disk outlive everything; all else starts again when the controller does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from agentrl.clock import monotonic
from agentrl.ledger.ledger import Ledger
from agentrl.observe.events import Observer
from agentrl.simulation.loop import kill, spawn
from agentrl.simulation.run import Scenario, Simulation, build
from agentrl.simulation.trainer import TrainerDisk


class Target(StrEnum):
    """What can be killed."""

    ENGINE = "engine"
    SANDBOX = "sandbox"
    TRAINER = "trainer"
    CONTROLLER = "controller"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """kill -9 of one thing."""

    at_s: float
    target: Target
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
        self.disk = TrainerDisk()
        self.lives: list[Simulation] = []
        """One for each controller so far."""
        self._died = asyncio.Event()
        self._node = ""

    async def run(self, faults: Sequence[Fault]) -> None:
        """Until a controller has made the last step. Raises what ends a controller otherwise."""
        striking = asyncio.create_task(self._strike_all(faults))
        try:
            await self._live()
            while self._died.is_set():
                await asyncio.sleep(self._restart_s)
                await self._live()
        finally:
            striking.cancel()

    async def _live(self) -> None:
        """One controller's life, to its end or its death."""
        self._node = f"controller-{len(self.lives)}"
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

    async def _strike_all(self, faults: Sequence[Fault]) -> None:
        for fault in sorted(faults, key=lambda fault: fault.at_s):
            await asyncio.sleep(fault.at_s - monotonic())
            if self.lives and not self._died.is_set():
                self._strike(fault, self.lives[-1])

    def _strike(self, fault: Fault, simulation: Simulation) -> None:
        match fault.target:
            case Target.ENGINE:
                names = simulation.engines.names
                simulation.engines.kill(names[fault.index % len(names)])
            case Target.SANDBOX:
                if sandboxes := simulation.provider.open:
                    sandboxes[fault.index % len(sandboxes)].die("killed")
            case Target.TRAINER:
                simulation.trainer.die()
            case Target.CONTROLLER:
                kill(self._node)
                kill(simulation.trainer.node)
                self._died.set()
