"""The simulated engines of a run, kept up as the real ones are: started on the current weights, replaced when lost."""

from __future__ import annotations

import asyncio

from agentrl.controller.fleet.fleet import Fleet
from agentrl.errors import EngineError
from agentrl.simulation.config import EngineLaw
from agentrl.simulation.engine import SimulatedEngine, Speaker
from agentrl.simulation.groups import SimulatedGroups
from agentrl.simulation.router import SimulatedRouter


class SimulatedEngines:
    """The controller's `Engines`. They are up `start_s` after the start, and `restart_s` after a loss."""

    def __init__(
        self,
        num_engines: int,
        law: EngineLaw,
        speaker: Speaker,
        *,
        start_s: float = 0.0,
        groups: SimulatedGroups | None = None,
    ) -> None:
        self._law = law
        self._start_s = start_s
        self._speaker = speaker
        self._groups = groups
        self._lost = {f"engine-{index}": asyncio.Event() for index in range(num_engines)}
        self._up: dict[str, SimulatedEngine] = {}
        self.made: list[SimulatedEngine] = []
        """Every engine there was, for its statistics."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._lost)

    def report_failure(self, role: str) -> None:
        self._lost[role].set()

    def kill(self, role: str) -> None:
        """As if the server's process were killed; whoever keeps it notices."""
        if engine := self._up.get(role):
            engine.die()
            self._lost[role].set()

    def hang(self, role: str) -> None:
        """The server stops answering; its process is there, so only deadlines tell."""
        if engine := self._up.get(role):
            engine.hang()

    def stick(self, role: str) -> None:
        """It acknowledges new weights and does not load them."""
        if engine := self._up.get(role):
            engine.stick()

    def spoil(self, role: str) -> None:
        """It damages the weights that it loads."""
        if engine := self._up.get(role):
            engine.spoil()

    async def keep(self, fleet: Fleet) -> None:
        if fleet.routed is not None:
            await fleet.routed.use(SimulatedRouter(self._up))
        async with asyncio.TaskGroup() as group:
            for role in self._lost:
                group.create_task(self._keep_one(role, fleet), name=role)

    async def _keep_one(self, role: str, fleet: Fleet) -> None:
        await asyncio.sleep(self._start_s)
        while True:
            await fleet.until_startable(role)
            version = fleet.start_weights(role).stored
            engine = SimulatedEngine(role, self._law, self._speaker, version=version, groups=self._groups)
            self._lost[role].clear()
            self._up[role] = engine
            self.made.append(engine)
            try:
                await fleet.admit(engine)
                await self._lost[role].wait()
            except EngineError:
                pass  # Killed before it served: replaced like any other.
            finally:
                fleet.dismiss(role)
            engine.die()
            await asyncio.sleep(self._law.restart_s)
