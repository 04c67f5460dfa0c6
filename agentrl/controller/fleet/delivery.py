"""How an engine gets weights that it does not have: from folders, or from the trainer itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from agentrl.config.schema import JobConfig
from agentrl.controller.config import PublishMethod
from agentrl.controller.fleet.weights import Weights, weights_bytes
from agentrl.controller.weights_desk import WeightsDesk
from agentrl.inference.config import Device, EngineBackend, InferenceConfig
from agentrl.inference.engine import Engine


class Delivery(Protocol):
    """One for a fleet."""

    @property
    def num_bytes(self) -> int:
        """Of weights that have travelled to engines."""
        ...

    async def deliver(
        self, engine: Engine, weights: Weights, *, base: int | None, careful: bool, flush_cache: bool
    ) -> None:
        """Raises EngineError, WeightsGone.

        `base`: the version that the engine certainly holds whole; None: there is none. `careful`: what it was given
        last went wrong.
        """
        ...


class FromFolders:
    """The engine reads the version's folder, or the last whole one and what has changed since."""

    def __init__(self) -> None:
        self.num_bytes = 0

    async def deliver(
        self, engine: Engine, weights: Weights, *, base: int | None, careful: bool, flush_cache: bool
    ) -> None:
        if weights.changes is None or base is None or base < weights.stored:
            await engine.update_weights(weights.path, weights.stored, flush_cache=flush_cache)
            self.num_bytes += weights_bytes(weights.path)
        if weights.changes is not None:
            await engine.update_weights(weights.changes, weights.version, flush_cache=flush_cache)
            self.num_bytes += weights_bytes(weights.changes)


class FromTrainer:
    """The trainer sends what the engine lacks. What is stored is read instead where the trainer has never had it, and
    by an engine with which sending went wrong."""

    def __init__(self, desk: WeightsDesk, devices: Mapping[str, Sequence[int]]) -> None:
        """`devices`: of each engine, by its name, the GPU of each of its ranks, or -1 for the CPU."""
        self._desk = desk
        self._devices = devices
        self._folders = FromFolders()
        self._sent_bytes = 0

    @property
    def num_bytes(self) -> int:
        return self._sent_bytes + self._folders.num_bytes

    async def deliver(
        self, engine: Engine, weights: Weights, *, base: int | None, careful: bool, flush_cache: bool
    ) -> None:
        if weights.version == 0 or (careful and weights.stored == weights.version):
            await self._folders.deliver(engine, weights, base=base, careful=careful, flush_cache=flush_cache)
            return
        async with self._desk.order(weights.version, base=base, devices=self._devices[engine.name]) as transfer:
            await engine.receive_weights(transfer, flush_cache=flush_cache)
        self._sent_bytes += transfer.num_bytes


def make_delivery(config: JobConfig, desk: WeightsDesk, engines: Sequence[str]) -> Delivery:
    """As `publish.method` says. `engines`: their names, in order."""
    if config.publish.method is PublishMethod.storage:
        return FromFolders()
    return FromTrainer(desk, {name: engine_devices(config.inference, index) for index, name in enumerate(engines)})


def engine_devices(config: InferenceConfig, index: int) -> list[int]:
    """The GPU of each rank of engine number `index`; -1 for the CPU."""
    if not on_gpus(config):
        return [-1]
    per_engine = config.sglang.gpus_per_engine
    return list(range(index * per_engine, (index + 1) * per_engine))


def on_gpus(config: InferenceConfig) -> bool:
    """Whether engines keep their weights on GPUs."""
    return config.backend is not EngineBackend.embedded and config.sglang.device is Device.cuda
