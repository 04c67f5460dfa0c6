"""Sandboxes: start, command, snapshot, fork, memory, close, each as a ratio to a bare `unshare` start in the same run.

    .venv/bin/python scripts/bench/sandbox.py [--sandboxes N] [--rounds N] [--json]

Wall times say what a user waits for and depend on what else the machine does; CPU times (everything that was started,
where the cpuacct hierarchy can be written) hardly do: compare those. The yardstick of a start is
`unshare --fork --pid --mount --user true`, the least that makes namespaces at all; that of a command is `bash -c true`
on the host. Memory is what one more idle sandbox takes: its processes' private pages and its control group's charge.

The second table is taken while all N sandboxes live; starts are each sandbox's own time, as many at once as
`start_concurrency` says. Where podman is installed, a container of the least files is started and entered, too.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from agentrl.sandbox.bubblewrap import BubblewrapProvider, BubblewrapSandbox
from agentrl.sandbox.config import SandboxConfig
from agentrl.sandbox.provider import Image, Sandbox, SandboxSpec
from agentrl.sandbox.warm_pool import WarmPool

CPUACCT = Path("/sys/fs/cgroup/cpuacct")
UNSHARE = ["unshare", "--fork", "--pid", "--mount", "--user", "true"]
SPEC = SandboxSpec(image=Image())
FILES = 5000


@dataclass(frozen=True)
class Row:
    """Milliseconds of one kind of action."""

    name: str
    wall_p50: float
    wall_p95: float
    cpu_p50: float | None
    """None where CPU time of all descendants cannot be read."""
    wall_ratio: float | None = None
    """To the yardstick of its kind; None for a yardstick."""
    cpu_ratio: float | None = None


class CpuClock:
    """CPU seconds of this process and all its descendants, dead ones included."""

    def __init__(self) -> None:
        self._group: Path | None = CPUACCT / f"agentrl-bench-{os.getpid()}"
        try:
            self._group.mkdir()
            (self._group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError:
            self._group = None

    def read(self) -> float | None:
        return int((self._group / "cpuacct.usage").read_text()) / 1e9 if self._group else None

    def close(self) -> None:
        if self._group:
            (CPUACCT / "cgroup.procs").write_text(str(os.getpid()))
            with suppress(OSError):
                self._group.rmdir()


async def measure(name: str, rounds: int, clock: CpuClock, action: Callable[[], Awaitable[object]]) -> Row:
    walls, cpus = [], []
    for _ in range(rounds):
        cpu, start = clock.read(), time.perf_counter()
        await action()
        walls.append((time.perf_counter() - start) * 1e3)
        if cpu is not None:
            cpus.append(((clock.read() or 0.0) - cpu) * 1e3)
    walls.sort()
    cpu_p50 = statistics.median(cpus) if cpus else None
    return Row(name, statistics.median(walls), walls[int(0.95 * len(walls))], cpu_p50)


def host(command: list[str]) -> Callable[[], Awaitable[object]]:
    async def run() -> None:
        await asyncio.to_thread(subprocess.run, command, check=True)

    return run


def relative(row: Row, yardstick: Row) -> Row:
    cpu = row.cpu_p50 / yardstick.cpu_p50 if row.cpu_p50 and yardstick.cpu_p50 else None
    return Row(row.name, row.wall_p50, row.wall_p95, row.cpu_p50, row.wall_p50 / yardstick.wall_p50, cpu)


def private_kib(pid: int) -> int:
    """Pages that a process shares with no other, of it and its children."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    own = sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return own + sum(private_kib(int(child)) for child in children)


def charged_kib(record: dict[str, Any]) -> int:
    """What the memory groups of all sandboxes are charged, their processes' private pages included."""
    usages = [p for base in record["cgroups"] for p in Path(base).glob("*/memory.*") if p.name in USAGE_FILES]
    return sum(int(path.read_text()) >> 10 for path in usages)


USAGE_FILES = ("memory.usage_in_bytes", "memory.current")


def read_record(state_dir: Path) -> dict[str, Any]:
    """What the provider made."""
    record: dict[str, Any] = json.loads(next(state_dir.glob("*.json")).read_text())
    return record


async def timed(name: str, actions: list[Callable[[], Awaitable[object]]], at_once: int) -> Row:
    """Wall time of each action; no CPU time, because several run at once."""
    gate, walls = asyncio.Semaphore(at_once), []

    async def one(action: Callable[[], Awaitable[object]]) -> None:
        async with gate:
            start = time.perf_counter()
            await action()
            walls.append((time.perf_counter() - start) * 1e3)

    await asyncio.gather(*(one(action) for action in actions))
    walls.sort()
    return Row(name, statistics.median(walls), walls[int(0.95 * len(walls))], None)


async def crowd(
    provider: BubblewrapProvider, state_dir: Path, num: int, at_once: int, yardsticks: tuple[Row, Row]
) -> tuple[list[Row], dict[str, float]]:
    """Many that live at once: their own times, and what all of them take."""
    unshare, bash = yardsticks
    record = read_record(state_dir)
    supervisor = record["supervisor"]["pid"]
    before = private_kib(supervisor) + charged_kib(record)
    made: list[BubblewrapSandbox] = []

    async def start() -> None:
        made.append(await provider.create(SPEC))

    began = time.perf_counter()
    starts = await timed("start", [start] * num, at_once)
    started = time.perf_counter()
    memory = (private_kib(supervisor) + charged_kib(record) - before) / num

    def command(sandbox: BubblewrapSandbox) -> Callable[[], Awaitable[object]]:
        return lambda: sandbox.exec("true", timeout_s=60)

    commands = await timed("command", [command(sandbox) for sandbox in made], 1)
    closing = time.perf_counter()
    await asyncio.gather(*(sandbox.close() for sandbox in made))
    took = {
        "sandboxes": num,
        "start_all_s": started - began,
        "close_all_s": time.perf_counter() - closing,
        "memory_each_kib_at_most": memory,
    }
    return [relative(starts, unshare), relative(commands, bash)], took


async def forks(provider: BubblewrapProvider, rounds: int, clock: CpuClock, unshare: Row) -> list[Row]:
    """Snapshots of a sandbox in which 5,000 files were written, and sandboxes made of one."""
    parent = await provider.create(SPEC)
    await parent.exec(f"cd /root; for i in $(seq {FILES}); do echo $i > file$i; done", timeout_s=120)
    kept = await parent.snapshot()
    made: list[BubblewrapSandbox] = []

    async def fork() -> None:
        made.append(await provider.create(SPEC, snapshot=kept))

    async def snapshot() -> None:
        await (await parent.snapshot()).release()

    rows = [await measure(f"snapshot, {FILES} files", rounds, clock, snapshot)]
    rows.append(await measure(f"fork, {FILES} files", rounds, clock, fork))
    await asyncio.gather(*(sandbox.close() for sandbox in [parent, *made]))
    return [relative(row, unshare) for row in rows]


async def hand_out(provider: BubblewrapProvider, rounds: int, clock: CpuClock, config: SandboxConfig) -> Row:
    """Asking a warm pool for a sandbox that is up, as against `start`: the time until an episode has one."""
    rounds = max(min(rounds, provider.room), 1)  # as many as the machine has memory for
    pool = WarmPool(provider, replace(config, warm_max=rounds), entropy=Random(0))
    running = asyncio.create_task(pool.run())
    made: list[Sandbox] = []

    async def take() -> None:
        made.append(await pool.create(SPEC))

    pool.expect([(SPEC, rounds)], due=rounds)
    while pool.figures().warm < rounds:  # noqa: ASYNC110 (what is waited for happens in other processes)
        await asyncio.sleep(0.05)
    pool.expect([], due=0)
    row = await measure("hand out a warm one", rounds, clock, take)
    running.cancel()
    await asyncio.gather(*(sandbox.close() for sandbox in made))
    return row


async def bench(sandboxes: int, rounds: int) -> Results:
    clock = CpuClock()
    with tempfile.TemporaryDirectory() as folder:
        config = SandboxConfig(max_sandboxes=sandboxes + rounds + 2)
        provider = BubblewrapProvider(config, state_dir=Path(folder))
        made: list[BubblewrapSandbox] = []

        async def start() -> None:
            made.append(await provider.create(SPEC))

        async def close() -> None:
            await made.pop().close()

        try:
            await start()
            sandbox = made[0]
            unshare = await measure("host: unshare", rounds, clock, host(UNSHARE))
            bash = await measure("host: bash -c true", rounds, clock, host(["bash", "-c", "true"]))
            rows = [
                unshare,
                relative(await measure("start", rounds, clock, start), unshare),
                relative(await measure("close", rounds, clock, close), unshare),
                relative(await hand_out(provider, rounds, clock, config), unshare),
                bash,
                relative(await measure("command", rounds, clock, lambda: sandbox.exec("true", timeout_s=60)), bash),
                relative(await measure("probe", rounds, clock, sandbox.probe), bash),
                relative(await measure("write a file", rounds, clock, lambda: sandbox.write("/f", b"x")), bash),
                *await forks(provider, rounds, clock, unshare),
            ]
            await sandbox.close()
            start_row, command_row = rows[1], rows[5]
            crowded, took = await crowd(provider, Path(folder), sandboxes, config.start_concurrency, (unshare, bash))
            theirs = await podman(Path(folder, "rootfs"), rounds // 4 + 1, clock)
            ratios = [
                {"name": row.name, "times_ours": row.wall_p50 / ours.wall_p50}
                for row, ours in zip(theirs, (start_row, command_row), strict=False)
            ]
            return Results([*rows, *theirs], crowded, took, ratios, provider.limits_by)
        finally:
            await provider.close()
            clock.close()


@dataclass(frozen=True)
class Results:
    """All that a run of the benchmark measured."""

    rows: list[Row]
    crowded: list[Row]
    """While all sandboxes live."""
    many: dict[str, float]
    podman: list[dict[str, Any]]
    """How many times ours its start and its command take; empty where it is not installed or does not run."""
    limits_by: str | None


async def podman(rootfs: Path, rounds: int, clock: CpuClock) -> list[Row]:
    """Start of a container, and a command in one. Empty where podman is not there, or refuses."""
    if shutil.which("podman") is None:
        return []
    make_rootfs(rootfs)
    name, numbers = f"agentrl-bench-{os.getpid()}", itertools.count()
    options = ["--runtime", "runc"] if shutil.which("runc") else []
    base = ["podman", *options, "--cgroup-manager", "cgroupfs"]
    limits = ["--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]

    async def start() -> None:
        command = ["run", "--detach", "--name", f"{name}-{next(numbers)}", *limits, "--rootfs", str(rootfs)]
        await quietly([*base, *command, "/bin/sleep", "600"])

    try:
        await start()
        started = await measure("podman: start", rounds, clock, start)
        entered = await measure(
            "podman: command", rounds, clock, lambda: quietly([*base, "exec", f"{name}-0", "/bin/bash", "-c", "true"])
        )
        return [started, entered]
    except subprocess.CalledProcessError as error:
        print(f"podman does not run here: {error.stderr.strip()}")
        return []
    finally:
        names = [f"{name}-{number}" for number in range(next(numbers))]
        await asyncio.to_thread(subprocess.run, [*base, "rm", "--force", "--time", "0", *names], capture_output=True)


async def quietly(command: list[str]) -> None:
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, text=True)


def make_rootfs(folder: Path) -> None:
    """The least that bash and sleep run on, copied from the host."""
    for name in ("usr", "proc", "dev", "sys", "tmp", "etc", "run", "bin"):
        (folder / name).mkdir(parents=True)
    for program in ("bash", "sleep"):
        path = shutil.which(program) or f"/bin/{program}"
        shutil.copy(path, folder / "bin")
        listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
        for library in re.findall(r"/\S+", listed):
            target = folder / library.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sandboxes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = asyncio.run(bench(arguments.sandboxes, arguments.rounds))
    if arguments.json:
        print(json.dumps(asdict(results)))
        return
    print_table(results.rows)
    many = results.many
    print(
        f"\n{many['sandboxes']:.0f} live at once, limits by {results.limits_by}: all started in "
        f"{many['start_all_s']:.2f} s, all closed in {many['close_all_s']:.2f} s, "
        f"at most {many['memory_each_kib_at_most'] / 1024:.1f} MiB each"
    )
    print_table(results.crowded)
    for ratio in results.podman:
        print(f"{ratio['name']} takes {ratio['times_ours']:.1f} times ours")


def print_table(rows: list[Row]) -> None:
    def number(value: float | None, digits: int) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    print(f"{'ms':24}{'wall p50':>9}{'p95':>8}{'cpu p50':>9}{'ratio wall':>12}{'cpu':>6}")
    for row in rows:
        times = f"{row.wall_p50:9.2f}{row.wall_p95:8.2f}{number(row.cpu_p50, 2):>9}"
        print(f"{row.name:24}{times}{number(row.wall_ratio, 1):>12}{number(row.cpu_ratio, 1):>6}")


if __name__ == "__main__":
    main()
