"""Sandboxes: start, command, memory, close, each as a ratio to a bare `unshare` start in the same run.

    .venv/bin/python scripts/bench/sandbox.py [--sandboxes N] [--rounds N] [--json]

Wall times say what a user waits for and depend on what else the machine does; CPU times (everything that was started,
where the cpuacct hierarchy can be written) hardly do: compare those. The yardstick of a start is
`unshare --fork --pid --mount --user true`, the least that makes namespaces at all; that of a command is `bash -c true`
on the host. Memory is what one more idle sandbox takes: its processes' private pages and its control group's charge.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentrl.sandbox.bubblewrap import BubblewrapProvider, BubblewrapSandbox
from agentrl.sandbox.config import SandboxConfig
from agentrl.sandbox.provider import Image, SandboxSpec

CPUACCT = Path("/sys/fs/cgroup/cpuacct")
UNSHARE = ["unshare", "--fork", "--pid", "--mount", "--user", "true"]
SPEC = SandboxSpec(image=Image())


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


async def crowd(provider: BubblewrapProvider, state_dir: Path, num: int) -> dict[str, float]:
    """Many at once: seconds to start and to close them, and KiB that each takes."""
    first = await provider.create(SPEC)
    record = read_record(state_dir)
    supervisor = record["supervisor"]["pid"]
    before = private_kib(supervisor) + charged_kib(record)
    start = time.perf_counter()
    sandboxes = await asyncio.gather(*(provider.create(SPEC) for _ in range(num)))
    started = time.perf_counter()
    memory = (private_kib(supervisor) + charged_kib(record) - before) / num
    asked = time.perf_counter()
    await asyncio.gather(*(sandbox.exec("true", timeout_s=60) for sandbox in sandboxes))
    answered = time.perf_counter()
    await asyncio.gather(*(sandbox.close() for sandbox in [*sandboxes, first]))
    return {
        "sandboxes": num,
        "start_all_s": started - start,
        "one_command_each_s": answered - asked,
        "close_all_s": time.perf_counter() - answered,
        "memory_each_kib_at_most": memory,
    }


async def bench(sandboxes: int, rounds: int) -> tuple[list[Row], dict[str, float], str | None]:
    clock = CpuClock()
    with tempfile.TemporaryDirectory() as folder:
        config = SandboxConfig(max_sandboxes=sandboxes + 1)
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
            few = min(rounds, sandboxes)
            rows = [
                unshare,
                relative(await measure("start", few, clock, start), unshare),
                relative(await measure("close", few, clock, close), unshare),
                bash,
                relative(await measure("command", rounds, clock, lambda: sandbox.exec("true", timeout_s=60)), bash),
                relative(await measure("probe", rounds, clock, sandbox.probe), bash),
                relative(await measure("write a file", rounds, clock, lambda: sandbox.write("/f", b"x")), bash),
            ]
            await sandbox.close()
            return rows, await crowd(provider, Path(folder), sandboxes), provider.limits_by
        finally:
            await provider.close()
            clock.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sandboxes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows, many, limits_by = asyncio.run(bench(arguments.sandboxes, arguments.rounds))
    if arguments.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "many": many, "limits_by": limits_by}))
        return
    print_table(rows)
    print(
        f"\n{many['sandboxes']:.0f} at once, limits by {limits_by}: all started in {many['start_all_s']:.2f} s, "
        f"one command in each in {many['one_command_each_s']:.2f} s, all closed in {many['close_all_s']:.2f} s, "
        f"at most {many['memory_each_kib_at_most'] / 1024:.1f} MiB each"
    )


def print_table(rows: list[Row]) -> None:
    def number(value: float | None, digits: int) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    print(f"{'ms':20}{'wall p50':>9}{'p95':>8}{'cpu p50':>9}{'ratio wall':>12}{'cpu':>6}")
    for row in rows:
        times = f"{row.wall_p50:9.2f}{row.wall_p95:8.2f}{number(row.cpu_p50, 2):>9}"
        print(f"{row.name:20}{times}{number(row.wall_ratio, 1):>12}{number(row.cpu_ratio, 1):>6}")


if __name__ == "__main__":
    main()
