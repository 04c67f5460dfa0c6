"""Who runs in a sandbox: seeing them, signalling them at once, and killing what a command started.

Of namespaces, all processes of the pid namespace; the door is not in it, only its children are. Without namespaces, all
descendants of the door: it adopts orphans, so that nobody leaves by becoming a daemon.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from agentrl.sandbox.supervisor.processes import fork_and_wait

_MAX_SWEEPS = 50
_SWEEP_PAUSE_S = 0.002
_STANDS_STILL = "TtZX"


class Process(NamedTuple):
    """One process. A pid alone is none: it is given out again."""

    pid: int
    started: int
    """Clock ticks from boot to its start."""


class Seen(NamedTuple):
    """A process as /proc shows it."""

    process: Process
    state: str
    """One letter; Z and X are dead."""
    parent: int


class Crowd(Protocol):
    """The processes of one sandbox."""

    def look(self) -> Iterable[Seen]:
        """Each, zombies too, but neither the caller nor the door."""
        ...

    def signal(self, number: int) -> None:
        """Signal all but the caller, which may be one of them. No fork slips through a SIGSTOP or SIGKILL."""
        ...


class Inhabitants:
    """A `Crowd`: all of a pid namespace but its first. Looks through its /proc; signals from inside only."""

    def look(self) -> Iterable[Seen]:
        return _all()

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, number)


class Descendants:
    """A `Crowd`: what descends from one process that adopts orphans."""

    def __init__(self, ancestor: int) -> None:
        self._ancestor = ancestor

    def look(self) -> Iterable[Seen]:
        return descendants(self._ancestor, [seen for seen in _all() if seen.process.pid != os.getpid()])

    def signal(self, number: int) -> None:
        if number in (signal.SIGSTOP, signal.SIGKILL):
            self._stop()
        if number != signal.SIGSTOP:
            for seen in self.look():
                send(seen.process, number)

    def _stop(self) -> None:
        """Until a look finds nobody moving: who moves could have forked since the last."""
        for _ in range(_MAX_SWEEPS):
            moving = [seen for seen in self.look() if seen.state not in _STANDS_STILL]
            if not moving:
                return
            for seen in moving:
                send(seen.process, signal.SIGSTOP)


def send(process: Process, number: int) -> None:
    """Signal a process, and never another that was given its pid meanwhile. One that is gone or not ours is let be."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        fd = os.pidfd_open(process.pid)
        try:
            seen = look_at(process.pid)
            if seen is not None and seen.process == process:
                signal.pidfd_send_signal(fd, number)
        finally:
            os.close(fd)


def descendants(ancestor: int, seen: Iterable[Seen]) -> list[Seen]:
    """Those of `seen` that descend from `ancestor`."""
    children: dict[int, list[Seen]] = defaultdict(list)
    for one in seen:
        children[one.parent].append(one)
    found: list[Seen] = []
    waiting = children.pop(ancestor, [])
    while waiting:
        one = waiting.pop()
        found.append(one)
        waiting += children.pop(one.process.pid, [])
    return found


def processes(crowd: Crowd) -> frozenset[Process]:
    """All of them, zombies too."""
    return frozenset(seen.process for seen in crowd.look())


def count_since(crowd: Crowd, earlier: frozenset[Process]) -> int:
    """Processes that live now and were not there `earlier`."""
    return sum(seen.state not in "ZX" and seen.process not in earlier for seen in crowd.look())


def newcomers(seen: Iterable[Seen], earlier: frozenset[Process]) -> list[Seen]:
    """Those that were not there `earlier` and do not descend from one that was, and is there still."""
    now = {one.process.pid: one for one in seen}
    old = {pid for pid, one in now.items() if one.process in earlier}
    return [one for pid, one in now.items() if pid not in old and not _descends(pid, now, old)]


def kill_since(crowd: Crowd, earlier: frozenset[Process]) -> None:
    """Kill every process that was not there `earlier` and does not descend from one that was."""
    for _ in range(_MAX_SWEEPS):
        fork_and_wait(lambda: _sweep(crowd, earlier))
        if all(seen.state in "ZX" for seen in newcomers(crowd.look(), earlier)):
            return
        select.select((), (), (), _SWEEP_PAUSE_S)


def kill_all(crowd: Crowd) -> tuple[int, int]:
    """Kill all of them, and wait until they are gone. Returns how many there were, and are left."""
    victims = left = count_since(crowd, frozenset())
    for _ in range(_MAX_SWEEPS):
        if not left:
            break
        signal_all(crowd, signal.SIGKILL)
        select.select((), (), (), _SWEEP_PAUSE_S)
        left = count_since(crowd, frozenset())
    return victims, left


def signal_all(crowd: Crowd, number: int) -> None:
    """Signal all of them, from a child: it is where they are."""
    fork_and_wait(lambda: crowd.signal(number))


def _sweep(crowd: Crowd, earlier: frozenset[Process]) -> None:
    """One atomic kill: nothing can fork while everything is stopped."""
    crowd.signal(signal.SIGSTOP)
    for seen in newcomers(crowd.look(), earlier):
        if seen.process.pid != os.getpid():
            send(seen.process, signal.SIGKILL)
    crowd.signal(signal.SIGCONT)


def _all() -> Iterator[Seen]:
    """Each process that /proc shows but the first."""
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit() and name != "1" and (seen := look_at(int(name))) is not None:
            yield seen


def look_at(pid: int) -> Seen | None:
    """One process; None if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return Seen(Process(pid, int(fields[19])), fields[0], int(fields[1]))


def _descends(pid: int, now: dict[int, Seen], ancestors: set[int]) -> bool:
    passed = {pid}
    while pid in now:
        pid = now[pid].parent
        if pid in ancestors:
            return True
        if pid in passed:  # numbers that were given out again while they were read
            return False
        passed.add(pid)
    return False
