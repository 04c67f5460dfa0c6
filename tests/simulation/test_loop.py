"""Virtual time: the clock jumps, equal seeds give equal runs, a deadlock is named, the killed never run again."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from agentrl.clock import monotonic, wall
from agentrl.simulation.loop import START_S, Deadlock, Overrun, kill, node_context, simulate, spawn


def test_time_jumps_and_both_clocks_show_it() -> None:
    async def main() -> tuple[float, float]:
        await asyncio.sleep(86_400.5)
        return monotonic(), wall()

    assert simulate(main(), seed=0) == (86_400.5, START_S + 86_400.5)


def test_timeouts_are_exact() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3.25):
                await asyncio.Event().wait()
        return monotonic()

    assert simulate(main(), seed=0) == 3.25


def test_the_wall_clock_is_the_machines_own_again_afterwards() -> None:
    async def main() -> None:
        await asyncio.sleep(1)

    simulate(main(), seed=0)
    assert wall() > START_S + 1000


def order_of_tasks(seed: int) -> list[int]:
    order: list[int] = []

    async def step(number: int) -> None:
        await asyncio.sleep(1.0)
        order.append(number)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(step(number))

    simulate(main(), seed=seed)
    return order


def test_what_is_ready_together_runs_in_an_order_that_the_seed_decides() -> None:
    assert order_of_tasks(1) == order_of_tasks(1)
    assert order_of_tasks(1) != order_of_tasks(2)
    assert sorted(order_of_tasks(1)) == list(range(20))


_PROGRAM = """
import asyncio
from agentrl.simulation.loop import simulate

order = []

async def step(name):
    try:
        await asyncio.sleep(len(name) % 3)
        if name.startswith("task-06"):
            raise ValueError(name)
        await asyncio.Event().wait()
    finally:
        order.append(name)

async def main():
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(50):
                group.create_task(step(f"task-{number:02d}" + number % 3 * "-"))
    except* ValueError:
        pass

junk = [bytearray(n * 37 % 501) for n in range(hash("x") % 1000)]
simulate(main(), seed=3)
print(*order)
"""


def test_runs_are_equal_under_any_hash_seed_and_memory_layout() -> None:
    def run(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run(
            [sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert len(run("1").split()) == 50
    assert run("1") == run("2") == run("777")


def test_deadlock_is_said_at_once_with_the_names_of_the_waiting() -> None:
    async def consumer() -> None:
        await asyncio.Queue[int]().get()

    async def main() -> None:
        await asyncio.sleep(5)
        await asyncio.create_task(consumer(), name="the-consumer")

    with pytest.raises(Deadlock, match=r"at 5 s: .*the-consumer \(.*get:"):
        simulate(main(), seed=0)


def test_a_run_that_does_not_end_is_ended_at_its_horizon() -> None:
    async def main() -> None:
        while True:
            await asyncio.wait([asyncio.create_task(asyncio.sleep(60))])

    with pytest.raises(Overrun, match="3600 s"):
        simulate(main(), seed=0, horizon_s=3600)


def test_an_error_in_a_callback_ends_the_simulation() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_later(1, [].pop)
        await asyncio.sleep(10)

    with pytest.raises(IndexError):
        simulate(main(), seed=0)


@pytest.mark.parametrize(
    "act",
    [
        lambda: asyncio.to_thread(print),
        lambda: asyncio.open_connection("127.0.0.1", 9),
        lambda: asyncio.create_subprocess_exec("true"),
        lambda: asyncio.get_running_loop().getaddrinfo("localhost", 1),
    ],
)
def test_sockets_threads_and_subprocesses_raise(act: Callable[[], object]) -> None:
    async def main() -> None:
        await act()  # type: ignore[misc]

    with pytest.raises(RuntimeError, match=r"no (threads|sockets|subprocesses) in virtual time"):
        simulate(main(), seed=0)


def test_the_killed_never_run_again_not_even_their_finally() -> None:
    said: list[str] = []
    woken = asyncio.Event()

    async def child() -> None:
        try:
            await woken.wait()
            said.append("child woke")
        finally:
            said.append("child's finally")

    async def victim() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(child())
                await asyncio.sleep(10)
                said.append("victim went on")
        finally:
            said.append("victim's finally")

    async def main() -> list[str]:
        spawn("victim", victim())
        await asyncio.sleep(5)
        kill("victim")
        woken.set()
        await asyncio.sleep(20)
        return list(said)

    assert simulate(main(), seed=0) == []


def test_killing_a_node_spares_the_others() -> None:
    async def count(seconds: list[float]) -> None:
        while True:
            await asyncio.sleep(1)
            seconds.append(monotonic())

    async def main() -> tuple[int, int]:
        one: list[float] = []
        other: list[float] = []
        spawn("one", count(one))
        spawn("other", count(other))
        await asyncio.sleep(3.5)
        kill("one")
        await asyncio.sleep(2)
        return len(one), len(other)

    assert simulate(main(), seed=0) == (3, 5)


def test_a_node_that_kills_itself_ends_when_it_next_gives_way() -> None:
    said: list[str] = []

    async def suicide() -> None:
        kill("self")
        said.append("still here")
        await asyncio.sleep(0)
        said.append("not here")

    async def main() -> None:
        spawn("self", suicide())
        await asyncio.sleep(1)

    simulate(main(), seed=0)
    assert said == ["still here"]


def test_the_name_of_a_dead_node_cannot_be_used_again() -> None:
    async def main() -> None:
        kill("gone")
        with pytest.raises(ValueError, match="another name"):
            node_context("gone")

    simulate(main(), seed=0)


def test_waiting_for_the_dead_is_a_deadlock() -> None:
    async def main() -> None:
        task = spawn("gone", asyncio.sleep(9))
        await asyncio.sleep(1)
        kill("gone")
        await task

    with pytest.raises(Deadlock):
        simulate(main(), seed=0)
