"""Processes of a run as children of the controller on this machine.

Each child gets a process group of its own (a Ctrl-C in the terminal reaches only the controller) and a parent-death
signal (a killed controller takes them along). What was started is reported to a `ProcessBook`, so that whatever slips
through both is found and ended by the next start or by `agentrl stop`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Protocol

from agentrl.cluster.cluster import Place, Process, ProcessSpec

_LOOPBACK = "127.0.0.1"


class ProcessBook(Protocol):
    """Where started processes are written down."""

    def started(self, *, pid: int, start_ticks: int, role: str) -> None: ...

    def ended(self, *, pid: int, start_ticks: int) -> None: ...


class LocalProcess:
    """One child. `wait` may be called any number of times."""

    def __init__(self, child: asyncio.subprocess.Process, start_ticks: int, book: ProcessBook) -> None:
        self._child = child
        self._start_ticks = start_ticks
        self._book = book

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def address(self) -> str:
        return _LOOPBACK

    @property
    def running(self) -> bool:
        return self._child.returncode is None

    async def wait(self) -> int:
        code = await self._child.wait()
        # What it leaves behind in its group goes with it.
        signal_group(self.pid, signal.SIGKILL)
        self._book.ended(pid=self.pid, start_ticks=self._start_ticks)
        return code

    async def stop(self, grace_s: float) -> int:
        if self.running:
            signal_group(self.pid, signal.SIGTERM)
            try:
                async with asyncio.timeout(grace_s):
                    return await self.wait()
            except TimeoutError:
                signal_group(self.pid, signal.SIGKILL)
        return await self.wait()


class LocalCluster:
    """Starts children of this process."""

    def __init__(self, book: ProcessBook) -> None:
        self._book = book
        self._children: list[LocalProcess] = []

    def place(self, role: str) -> Place:
        return Place(python=sys.executable, sglang_python=None, host=_LOOPBACK, port=0, own_gpus=False)

    def torchrun(self, world_size: int) -> list[str]:
        return ["--standalone", "--nproc-per-node", str(world_size)]

    async def start(self, spec: ProcessSpec) -> Process:
        spec.log.parent.mkdir(parents=True, exist_ok=True)
        with spec.log.open("ab") as log:
            # setpriv, not preexec_fn: forking Python code from a process with threads is unsafe.
            child = await asyncio.create_subprocess_exec(
                "setpriv", "--pdeathsig", "KILL", "--", *spec.argv,
                env={**os.environ, **spec.env},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )  # fmt: skip
        start_ticks = process_start_ticks(child.pid) or 0
        self._book.started(pid=child.pid, start_ticks=start_ticks, role=spec.role)
        process = LocalProcess(child, start_ticks, self._book)
        self._children = [c for c in self._children if c.running] + [process]
        return process

    async def close(self, grace_s: float) -> None:
        async with asyncio.TaskGroup() as group:
            for child in self._children:
                group.create_task(child.stop(grace_s))
        self._children = []


def signal_group(pid: int, number: signal.Signals) -> None:
    """Signal a process group; nothing happens if it is gone."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


def process_start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; with the pid it names one process for ever. None if gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    # A zombie has ended; only its parent has not looked yet. Field 3 is the state, 22 the start time.
    return None if fields[0] == "Z" else int(fields[19])


def end_process(pid: int, start_ticks: int) -> bool:
    """SIGKILL a recorded process and its group if it is still that process. Returns whether it was."""
    if process_start_ticks(pid) != start_ticks:
        return False
    signal_group(pid, signal.SIGKILL)
    return True
