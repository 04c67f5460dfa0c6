"""A weight folder stays on disk as long as some engine will read it, however long that engine is the trainer's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentrl.controller.controller import prune_weights
from agentrl.controller.fleet.fleet import Fleet
from agentrl.controller.fleet.state import EngineState
from agentrl.controller.fleet.weights import Weights
from agentrl.errors import EngineError
from agentrl.inference.engine import SamplingParams
from agentrl.rollout.active_time import ActiveTime
from agentrl.simulation.engine import SimulatedEngine
from agentrl.simulation.loop import simulate
from tests.simulation.small import hardware

LAW = hardware("engine.request_s=0.5", "engine.update_weights_s=3", "engine.step_s=0.1").engine


class ReadingEngine(SimulatedEngine):
    """Reads the folder that it was last given whenever it loads weights, and refuses when there is none."""

    def __init__(self, weights: Weights) -> None:
        super().__init__("swing", LAW, lambda rid, ids: [7] * 100, version=weights.version)
        self._path = weights.path
        self._read(self._path)

    async def update_weights(self, path: str, version: int, *, flush_cache: bool = True) -> None:
        self._read(path)
        await super().update_weights(path, version, flush_cache=flush_cache)
        self._path = path

    async def resume_memory(self) -> None:
        self._read(self._path)
        await super().resume_memory()

    def _read(self, path: str) -> None:
        if not Path(path).is_dir():
            raise EngineError(f"no such folder: {path}")


class LateEngine(ReadingEngine):
    """The server loads new weights after the caller's deadline."""

    late = False

    async def update_weights(self, path: str, version: int, *, flush_cache: bool = True) -> None:
        await super().update_weights(path, version, flush_cache=flush_cache)
        if self.late:
            await asyncio.sleep(1000)


class Publisher:
    """A fleet whose trainer publishes one version after the other, of which two are kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.failed: list[str] = []
        self.fleet = Fleet(
            self._export(1),
            ActiveTime(),
            turn_timeout_s=600,
            control_timeout_s=60,
            on_failure=self.failed.append,
            swing=("swing",),
        )

    def _export(self, version: int) -> Weights:
        path = self._folder / f"v{version:06d}"
        path.mkdir()
        return Weights(str(path), version)

    async def publish(self, *, times: int) -> None:
        for _ in range(times):
            await self.fleet.suspend()
            await self.fleet.publish(self._export(self.fleet.weights.version + 1))
            await self.fleet.resume()
            prune_weights(self._folder, keep=2, in_use=self.fleet.weights_in_use)

    def kept(self) -> set[str]:
        return {path.name for path in self._folder.iterdir()}

    async def admit_new(self) -> ReadingEngine:
        engine = ReadingEngine(self.fleet.start_weights("swing"))
        await self.fleet.admit(engine)
        return engine

    async def check_return(self) -> None:
        """The engine comes back on the newest version, without a failure, and only what is kept is left."""
        await self.fleet.take_back()
        assert self.failed == []
        assert self.fleet.state("swing") is EngineState.FREE
        generation = await self.fleet.sample("e", "e.t", [1], SamplingParams(max_new_tokens=1))
        assert generation.versions == [self.fleet.weights.version]
        await self.publish(times=1)
        newest = self.fleet.weights.version
        assert self.kept() == {f"v{newest - 1:06d}", f"v{newest:06d}"}


@pytest.mark.parametrize("published_before", [0, 1])
def test_an_engine_that_stays_with_the_trainer_for_many_steps_comes_back(published_before: int, tmp_path: Path) -> None:
    async def main() -> None:
        run = Publisher(tmp_path)
        await run.admit_new()
        await run.publish(times=published_before)
        await run.fleet.lend()
        await run.publish(times=6)
        await run.check_return()

    simulate(main(), seed=0)


def test_an_engine_that_was_restarted_while_lent_comes_back_many_steps_later(tmp_path: Path) -> None:
    async def main() -> None:
        run = Publisher(tmp_path)
        first = await run.admit_new()
        await run.fleet.lend()
        await run.publish(times=2)
        first.die()
        run.fleet.dismiss("swing")
        await run.admit_new()
        assert run.fleet.state("swing") is EngineState.LENT
        await run.publish(times=6)
        await run.check_return()

    simulate(main(), seed=0)


def test_an_engine_that_was_doubted_while_lent_comes_back_many_steps_later(tmp_path: Path) -> None:
    async def main() -> None:
        run = Publisher(tmp_path)
        engine = await run.admit_new()
        await run.fleet.lend()
        await run.publish(times=1)
        run.fleet.dismiss("swing")
        await run.publish(times=4)
        await run.fleet.admit(engine)
        await run.publish(times=4)
        await run.check_return()

    simulate(main(), seed=0)


def test_an_engine_that_starts_for_many_steps_finds_the_weights_it_was_started_on(tmp_path: Path) -> None:
    async def main() -> None:
        run = Publisher(tmp_path)
        await run.fleet.lend()
        started_on = run.fleet.start_weights("swing")
        await run.publish(times=5)
        await run.fleet.admit(ReadingEngine(started_on))
        await run.publish(times=5)
        await run.check_return()

    simulate(main(), seed=0)


def test_of_an_update_that_missed_its_deadline_both_folders_stay(tmp_path: Path) -> None:
    async def main() -> None:
        run = Publisher(tmp_path)
        engine = LateEngine(run.fleet.start_weights("swing"))
        await run.fleet.admit(engine)
        engine.late = True
        await run.publish(times=1)
        assert run.failed == ["swing"], "nobody knows which of the two it serves"
        await run.publish(times=5)
        assert run.kept() >= {"v000001", "v000002"}
        run.failed.clear()
        engine.late = False
        await run.fleet.admit(engine)
        await run.check_return()

    simulate(main(), seed=0)


@pytest.mark.parametrize(
    ("present", "keep", "left"), [(2, 4, [1, 2]), (3, 4, [1, 2, 3]), (4, 4, [1, 2, 3, 4]), (5, 4, [2, 3, 4, 5])]
)
def test_as_many_versions_stay_as_are_to_be_kept_from_the_first_one_on(
    tmp_path: Path, present: int, keep: int, left: list[int]
) -> None:
    for version in range(1, present + 1):
        (tmp_path / f"v{version:06d}").mkdir()
    prune_weights(tmp_path, keep=keep)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"v{version:06d}" for version in left]
