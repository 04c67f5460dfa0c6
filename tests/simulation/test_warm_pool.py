"""The warm pool in virtual time: over simulated sandboxes, and over starts that fail or hang as they are told to."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from random import Random

import pytest

from agentrl.clock import monotonic
from agentrl.errors import ImageError, SandboxError
from agentrl.sandbox.config import SandboxConfig
from agentrl.sandbox.provider import Image, SandboxProvider, SandboxSpec, Snapshot, unheard
from agentrl.sandbox.warm_pool import WarmPool
from agentrl.simulation.config import load_workload
from agentrl.simulation.life import World
from agentrl.simulation.loop import kill, simulate, spawn
from agentrl.simulation.sandbox import SimulatedProvider, SimulatedSandbox
from tests.contracts.sandbox import SANDBOX_CHECKS, SandboxCheck

SPEC = SandboxSpec(image=Image(workdir="/app"))
OTHER = SandboxSpec(image=Image(workdir="/other"))
HANGS = 1e6


class Told(SimulatedProvider):
    """Each start takes the next time that it was told, then the last one; an error fails it at once."""

    def __init__(self, *starts: float | Exception, max_sandboxes: int = 64) -> None:
        super().__init__(
            World(load_workload("w_tb"), seed=0), starts_at_once=64, start_timeout_s=HANGS, max_sandboxes=max_sandboxes
        )
        self._told = list(starts)
        self.began_s: list[float] = []

    async def create(
        self, spec: SandboxSpec, *, snapshot: Snapshot | None = None, on_begin: Callable[[], None] = unheard
    ) -> SimulatedSandbox:
        self.began_s.append(monotonic())
        told = self._told.pop(0) if len(self._told) > 1 else self._told[0]
        if isinstance(told, Exception):
            raise told
        self._now_s = told
        return await super().create(spec, snapshot=snapshot, on_begin=on_begin)

    def _cold_s(self, owner: str | None) -> float:
        return self._now_s


class Full(Told):
    """Has so many places and no more; those who wait for one get it in the order in which they came."""

    def __init__(self, *starts: float | Exception, max_sandboxes: int) -> None:
        super().__init__(*starts, max_sandboxes=max_sandboxes)
        self._places = asyncio.Semaphore(max_sandboxes)

    async def create(
        self, spec: SandboxSpec, *, snapshot: Snapshot | None = None, on_begin: Callable[[], None] = unheard
    ) -> SimulatedSandbox:
        await self._places.acquire()
        try:
            return await super().create(spec, snapshot=snapshot, on_begin=on_begin)
        except BaseException:
            self._places.release()
            raise

    def _closed_one(self, sandbox: SimulatedSandbox, problem: str) -> None:
        if sandbox in self.open:
            self._places.release()
        super()._closed_one(sandbox, problem)


def kind(number: int) -> SandboxSpec:
    return SandboxSpec(image=Image(workdir=f"/task{number}"))


def pool_of(provider: SandboxProvider, **settings: float) -> WarmPool:
    config = SandboxConfig(
        **{"warm_max": 8, "start_concurrency": 8, "start_timeout_s": 60.0, "max_sandboxes": 64} | settings  # type: ignore[arg-type]
    )
    return WarmPool(provider, config, entropy=Random(0))


@asynccontextmanager
async def running(pool: WarmPool) -> AsyncIterator[WarmPool]:
    """A pool that runs, closed at the end; nothing is left of its sandboxes then."""
    task = asyncio.create_task(pool.run())
    try:
        yield pool
    finally:
        await pool.close()
        await task
    assert isinstance(pool._provider, SimulatedProvider)
    assert pool._provider.open == ()


def owned(number: int) -> SandboxSpec:
    return SandboxSpec(image=SPEC.image, owner=f"g{number:06d}.m000.a00")


def in_virtual_time(main: Coroutine[object, object, None], seed: int = 0) -> None:
    simulate(main, seed=seed, horizon_s=7200)


@pytest.mark.parametrize("warm_max", [0, 4])
@pytest.mark.parametrize("check", SANDBOX_CHECKS, ids=lambda check: check.__name__)
def test_a_pool_keeps_a_providers_promises(check: SandboxCheck, warm_max: int) -> None:
    async def main() -> None:
        async with running(pool_of(Told(5.0), warm_max=warm_max)) as pool:
            pool.expect([(SPEC, 3)], due=3)
            await asyncio.sleep(10)
            await check(pool)

    in_virtual_time(main())


def test_what_was_expected_is_there_and_is_its_owners() -> None:
    async def main() -> None:
        async with running(pool_of(Told(30.0))) as pool:
            pool.expect([(SPEC, 2)], due=2)
            await asyncio.sleep(31)
            began = monotonic()
            made = [await pool.create(owned(number)) for number in range(2)]
            assert monotonic() - began < 10, "the law of warm starts, twice"
            assert [sandbox.owner for sandbox in made if isinstance(sandbox, SimulatedSandbox)] == [
                owned(number).owner for number in range(2)
            ]
            assert len({sandbox.id for sandbox in made}) == 2
            figures = pool.figures()
            assert (figures.hit_rate, figures.waste, figures.warm) == (1.0, 0.0, 0)

    in_virtual_time(main())


def test_without_expectations_each_request_waits_for_its_own_start() -> None:
    async def main() -> None:
        async with running(pool_of(Told(30.0), warm_max=0)) as pool:
            pool.expect([(SPEC, 8)], due=8)
            await asyncio.gather(*(pool.create(owned(number)) for number in range(3)))
            figures = pool.figures()
            assert (figures.counts.hits, figures.counts.misses, figures.counts.started) == (0, 3, 3)
            assert figures.acquire_p50_s is not None and figures.acquire_p50_s >= 30

    in_virtual_time(main())


def test_a_steady_stream_finds_sandboxes_warm_without_one_for_everybody() -> None:
    """One every 10 s, each 30 s to start: about three must be on their way, not the whole queue."""

    async def main() -> None:
        async with running(pool_of(Told(30.0), warm_max=16)) as pool:
            most = 0
            for number in range(60):
                pool.expect([(SPEC, 60 - number)], due=0)
                sandbox = await pool.create(owned(number))
                await sandbox.close()
                await asyncio.sleep(10)
                most = max(most, pool.figures().warm + len(pool._starts))
            assert pool.figures().counts.misses <= 4
            assert most <= 8
            assert pool.figures().counts.unused == 0

    in_virtual_time(main())


def test_a_dead_one_is_replaced_when_it_is_handed_out() -> None:
    async def main() -> None:
        provider = Told(5.0)
        async with running(pool_of(provider)) as pool:
            pool.expect([(SPEC, 1)], due=1)
            await asyncio.sleep(10)
            provider.open[0].die("killed")
            sandbox = await pool.create(owned(0))
            assert await sandbox.probe()
            assert (pool.figures().counts.dead, pool.figures().counts.misses) == (1, 1)

    in_virtual_time(main())


def test_one_that_served_is_not_handed_out_again() -> None:
    async def main() -> None:
        async with running(pool_of(Told(5.0))) as pool:
            seen = set()
            for number in range(6):
                pool.expect([(SPEC, 2)], due=2)
                sandbox = await pool.create(owned(number))
                seen.add(sandbox.id)
                await sandbox.close()
            assert len(seen) == 6

    in_virtual_time(main())


def test_the_second_start_wins_over_one_that_hangs() -> None:
    async def main() -> None:
        provider = Told(*[10.0] * 8, HANGS, 10.0)
        async with running(pool_of(provider, warm_max=0)) as pool:
            await asyncio.gather(*(pool.create(owned(number)) for number in range(8)))
            began = monotonic()
            await pool.create(owned(8))
            assert 25 <= monotonic() - began < 35, "1.5 leads of 10 s, then a start of 10 s"
            counts = pool.figures().counts
            assert (counts.hedged, counts.started) == (1, 9)
            await asyncio.sleep(1)
            assert pool.figures().counts.abandoned == 1
            assert provider._num_starting == 0

    in_virtual_time(main())


def test_hanging_starts_do_not_keep_their_places() -> None:
    async def main() -> None:
        provider = Told(*[10.0] * 8, HANGS, HANGS, 10.0)
        async with running(pool_of(provider, warm_max=0, start_concurrency=2)) as pool:
            await asyncio.gather(*(pool.create(owned(number)) for number in range(8)))
            await asyncio.gather(*(pool.create(owned(number)) for number in range(8, 12)))
            assert pool.figures().counts.abandoned == 2

    in_virtual_time(main())


def test_a_kind_that_is_slower_than_all_others_still_starts() -> None:
    async def main() -> None:
        provider = Told(*[1.0] * 8, 20.0)
        async with running(pool_of(provider, warm_max=0, start_concurrency=1)) as pool:
            for number in range(8):
                await pool.create(owned(number))
            await asyncio.gather(pool.create(OTHER), pool.create(OTHER))
            assert pool.figures().counts.abandoned > 0

    in_virtual_time(main())


def test_failed_starts_are_tried_again_ever_later_and_then_told() -> None:
    async def main() -> None:
        provider = Told(SandboxError("no disk"))
        async with running(pool_of(provider)) as pool:
            with pytest.raises(SandboxError, match="no disk"):
                await pool.create(owned(0))
            assert len(provider.began_s) == 3
            first, second, third = provider.began_s
            assert 0.25 <= second - first <= 0.5
            assert 0.5 <= third - second <= 1.0
            with pytest.raises(SandboxError, match="no disk"):
                await pool.create(owned(1))
            assert provider.began_s[3] - third >= 1.0

    in_virtual_time(main())


def test_a_start_that_fails_once_is_not_noticed() -> None:
    async def main() -> None:
        async with running(pool_of(Told(SandboxError("no disk"), 1.0))) as pool:
            await pool.create(owned(0))
            assert pool.figures().counts.failed == 1

    in_virtual_time(main())


def test_an_image_that_cannot_be_made_is_told_at_once_and_others_go_on() -> None:
    async def main() -> None:
        provider = Told(ImageError("no such base"), 1.0)
        async with running(pool_of(provider)) as pool:
            with pytest.raises(ImageError, match="no such base"):
                await pool.create(owned(0))
            await pool.create(OTHER)

    in_virtual_time(main())


def test_starts_that_hang_are_told_after_three() -> None:
    async def main() -> None:
        async with running(pool_of(Told(HANGS), start_timeout_s=20.0)) as pool:
            began = monotonic()
            with pytest.raises(SandboxError, match="within 40 s"):
                await pool.create(owned(0))
            assert 120 < monotonic() - began < 123, "three of 40 s, and what lies between them"

    in_virtual_time(main())


def test_waiting_for_a_place_is_no_failure() -> None:
    """Neither of a request in line nor of a start that has no place yet."""

    async def main() -> None:
        provider = Full(5.0, max_sandboxes=1)
        async with running(pool_of(provider, start_timeout_s=20.0, start_concurrency=1)) as pool:
            first = await pool.create(owned(0))
            others = [asyncio.create_task(pool.create(kind(number))) for number in range(2)]
            await asyncio.sleep(1000)
            await first.close()
            await (await others[0]).close()
            await others[1]
            counts = pool.figures().counts
            assert (counts.failed, counts.hedged, counts.abandoned) == (0, 0, 0)

    in_virtual_time(main())


@pytest.mark.parametrize("start_s", [0.0, 0.016, 3.0])
@pytest.mark.parametrize("warm_max", [0, 16])
def test_no_request_is_overtaken_where_every_task_is_of_another_kind(start_s: float, warm_max: int) -> None:
    """Groups of attempts at tasks that come again, more than there are places, and few starts at once: those that asked
    first are up first, but for what was in flight."""
    at_once, places, num_groups, members = 4, 40, 60, 8

    async def main() -> None:
        asked: list[int] = []
        served: list[int] = []
        lives = Random(0)

        async def attempt(pool: WarmPool, number: int, group: int) -> None:
            asked.append(number)
            sandbox = await pool.create(kind(group % 12))
            served.append(number)
            await asyncio.sleep(lives.uniform(0.0, 30.0))
            await sandbox.close()

        provider = Full(*[1.0] * 8, start_s, max_sandboxes=places)
        async with running(pool_of(provider, warm_max=warm_max, start_concurrency=at_once)) as pool:
            async with asyncio.TaskGroup() as tasks:
                for group in range(num_groups):
                    pool.expect([(kind(later % 12), members) for later in range(group + 1, group + 4)], due=members)
                    for member in range(members):
                        tasks.create_task(attempt(pool, group * members + member, group))
                    await asyncio.sleep(2.0)
            place = {number: at for at, number in enumerate(served)}
            for at, number in enumerate(asked):
                overtook = sum(place[later] < place[number] for later in asked[at + 1 :])
                assert overtook <= at_once + warm_max, f"{number} was overtaken by {overtook}"
            assert pool.figures().counts.failed == 0

    in_virtual_time(main())


def test_what_nobody_asks_for_is_closed() -> None:
    async def main() -> None:
        provider = Told(5.0)
        async with running(pool_of(provider, warm_idle_s=100.0)) as pool:
            pool.expect([(SPEC, 2)], due=2)
            await asyncio.sleep(50)
            assert len(provider.open) == 2
            pool.expect([], due=0)
            await asyncio.sleep(60)
            assert len(provider.open) == 0
            assert pool.figures().counts.unused == 2

    in_virtual_time(main())


def test_warm_ones_make_room_for_what_is_asked_for() -> None:
    async def main() -> None:
        provider = Told(5.0, max_sandboxes=3)
        async with running(pool_of(provider)) as pool:
            pool.expect([(OTHER, 8)], due=8)
            await asyncio.sleep(10)
            assert len(provider.open) == 3
            await asyncio.gather(*(pool.create(owned(number)) for number in range(3)))
            assert len(provider.open) == 3

    in_virtual_time(main())


def test_forks_take_the_place_of_warm_ones() -> None:
    async def main() -> None:
        provider = Told(5.0, max_sandboxes=3)
        async with running(pool_of(provider)) as pool:
            first = await pool.create(owned(0))
            pool.expect([(OTHER, 8)], due=8)
            await asyncio.sleep(10)
            snapshot = await first.snapshot()
            await pool.create(owned(1), snapshot=snapshot)
            assert len(provider.open) == 3
            await snapshot.release()

    in_virtual_time(main())


def test_forks_wait_in_line_with_all_others() -> None:
    """Whoever asked first is served first, and no start is begun that has no place."""

    async def main() -> None:
        provider = Full(5.0, max_sandboxes=1)
        async with running(pool_of(provider, warm_max=0)) as pool:
            first = await pool.create(owned(0))
            snapshot = await first.snapshot()
            served: list[int] = []

            async def serve(number: int, snapshot: Snapshot | None) -> None:
                sandbox = await pool.create(owned(number), snapshot=snapshot)
                served.append(number)
                await sandbox.close()

            asking = []
            for number in (2, 3, 5, 4, 7):
                asking.append(asyncio.create_task(serve(number, snapshot if number % 2 else None)))
                await asyncio.sleep(1)
            await first.close()
            await asyncio.gather(*asking)
            assert served == [2, 3, 5, 4, 7]
            assert pool.figures().counts.misses == 3, "the figures are without forks"
            await snapshot.release()

    in_virtual_time(main())


def test_a_fork_that_nobody_wants_any_more_is_closed() -> None:
    async def main() -> None:
        provider = Told(5.0)
        async with running(pool_of(provider, warm_max=0)) as pool:
            first = await pool.create(owned(0))
            snapshot = await first.snapshot()
            asking = asyncio.create_task(pool.create(owned(1), snapshot=snapshot))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            asking.cancel()
            await asyncio.sleep(30)
            assert [sandbox.id for sandbox in provider.open] == [first.id]

    in_virtual_time(main())


def test_a_fork_that_fails_is_told_at_once_to_who_asked_for_it() -> None:
    async def main() -> None:
        provider = Told(5.0)
        async with running(pool_of(provider)) as pool:
            first = await pool.create(owned(0))
            snapshot = await first.snapshot()
            await snapshot.release()
            began = monotonic()
            with pytest.raises(SandboxError, match="was released"):
                await pool.create(owned(1), snapshot=snapshot)
            assert monotonic() - began < 1.0

    in_virtual_time(main())


@pytest.mark.parametrize("seed", range(20))
def test_a_cancelled_request_leaves_its_sandbox_to_the_next(seed: int) -> None:
    """Whether it is cancelled before, while or after it is served."""

    async def main() -> None:
        provider = Told(5.0)
        async with running(pool_of(provider, warm_max=0)) as pool:
            asking = asyncio.create_task(pool.create(SPEC))
            await asyncio.sleep(5.0)
            asking.cancel()
            await asyncio.wait({asking})
            if asking.cancelled():
                await pool.create(SPEC)
                assert pool.figures().counts.started == 1
            assert len(provider.open) == 1

    in_virtual_time(main(), seed=seed)


def test_a_request_that_is_cancelled_while_it_is_handed_over_closes_its_sandbox() -> None:
    async def main() -> None:
        provider = Told(5.0)
        async with running(pool_of(provider)) as pool:
            pool.expect([(SPEC, 1)], due=1)
            await asyncio.sleep(10)
            pool.expect([], due=0)
            asking = asyncio.create_task(pool.create(owned(0)))
            await asyncio.sleep(0.01)
            asking.cancel()
            await asyncio.wait({asking})
            assert provider.open == ()

    in_virtual_time(main())


def test_closing_ends_requests_and_starts_in_flight() -> None:
    async def main() -> None:
        provider = Told(30.0)
        pool = pool_of(provider)
        task = asyncio.create_task(pool.run())
        pool.expect([(OTHER, 2)], due=2)
        asking = asyncio.create_task(pool.create(owned(0)))
        await asyncio.sleep(1)
        await pool.close()
        with pytest.raises(SandboxError, match="closed"):
            await asking
        await task
        assert provider.open == () and provider._num_starting == 0

    in_virtual_time(main())


def test_a_killed_pool_takes_nothing_along_and_another_goes_on() -> None:
    async def main() -> None:
        provider = Told(30.0)

        async def first() -> None:
            pool = pool_of(provider)
            async with asyncio.TaskGroup() as group:
                group.create_task(pool.run())
                pool.expect([(SPEC, 4)], due=4)
                await pool.create(owned(0))

        dead = spawn("controller", first(), name="first")
        await asyncio.sleep(10)
        kill("controller")
        assert not dead.done()
        async with running(pool_of(provider)) as pool:
            await pool.create(owned(1))

    in_virtual_time(main())


def test_a_pool_that_ends_in_the_middle_of_a_hand_out_leaves_no_coroutine_behind() -> None:
    """As where a simulation ends, or its node is killed."""

    async def main() -> None:
        pool = pool_of(Told(1.0), warm_max=0)
        spawn("controller", pool.run())
        spawn("controller", pool.create(owned(0)))
        await asyncio.sleep(1.5)
        assert pool.figures().counts.started == 1 and pool.figures().counts.misses == 0, "it is being handed out"

    asyncio.set_event_loop(None)  # or a coroutine could hide in a loop that never runs
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        in_virtual_time(main())
    assert [str(warning.message) for warning in caught] == []
