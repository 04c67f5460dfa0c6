"""Control groups: which hierarchies this machine lends us, and one group per sandbox in each of them.

cgroup v2 where a writable group hands out the memory and pids controllers; else cgroup v1; else none, and only rlimits
hold. In a hybrid machine the empty v2 hierarchy still freezes: v1's freezer is not used, because what it froze cannot
be killed. The groups of one owner lie under one base folder per hierarchy, so that they can be removed by its name.

To move a process the kernel waits until all its processors have passed through the scheduler (several milliseconds, of
each start and each command), unless a thread of a v1 hierarchy moves itself. So v1 groups are joined that way, and a v2
group that only freezes is joined when it does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

CPU_PERIOD_US = 100_000
_REMOVE_WAIT_S = 5.0
_MAX_SWEEPS = 50
_V2_CONTROLLERS = ("memory", "pids", "cpu")


@dataclass(frozen=True)
class Hierarchies:
    """Base folder of one owner in each hierarchy; None where this machine lends none."""

    version: int
    """2, 1, or 0: neither, rlimits only."""
    memory: str | None = None
    pids: str | None = None
    cpu: str | None = None
    freezer: str | None = None
    """In the v2 hierarchy, with or without controllers."""

    def bases(self) -> tuple[str, ...]:
        """Each folder once."""
        return tuple(dict.fromkeys(p for p in (self.memory, self.pids, self.cpu, self.freezer) if p))


@dataclass(frozen=True)
class Limits:
    """What one sandbox may use."""

    memory_bytes: int
    pids: int
    cpus: float | None


def create_base(name: str) -> Hierarchies:
    """Make the base folder `name` in the best hierarchies that are writable. Never raises: the answer may be none."""
    found = mounts()
    v2_mount = found.get("")
    if v2_mount and (base := _v2_base_with_controllers(v2_mount, name)):
        cpu = base if "cpu" in _words(Path(base, "cgroup.subtree_control")) else None
        return Hierarchies(2, memory=base, pids=base, cpu=cpu, freezer=base)
    memory = _make_base(found.get("memory"), name)
    pids = _make_base(found.get("pids"), name)
    freezer = _make_base(v2_mount, name)
    if freezer and not Path(freezer, "cgroup.freeze").exists():
        remove_base(freezer)
        freezer = None
    if memory and pids:
        return Hierarchies(1, memory=memory, pids=pids, cpu=_make_base(found.get("cpu"), name), freezer=freezer)
    for path in filter(None, (memory, pids)):
        remove_base(path)
    return Hierarchies(0, freezer=freezer)


class Cgroup:
    """The groups of one sandbox. What is opened here works on inside the sandbox, where their file system is not."""

    def __init__(self, hierarchies: Hierarchies, name: str, limits: Limits) -> None:
        """Make and limit them. Raises OSError, having removed what it made."""
        self._version = hierarchies.version
        self._paths = {
            kind: Path(base, name)
            for kind in ("memory", "pids", "cpu", "freezer")
            if (base := getattr(hierarchies, kind)) is not None
            # without a limit no group: all sandboxes together would count as one process among the machine's
            and (kind != "cpu" or limits.cpus is not None)
        }
        self.fds: list[int] = []
        """What `join` and `oom_kills` need; to be kept open in processes that call them."""
        self._join_fds: list[int] = []
        self._oom_fd: int | None = None
        self._late: tuple[int, int] | None = None
        """(`cgroup.freeze` to read, `cgroup.procs` to write) of a group that is joined only where it freezes."""
        late = self._paths.get("freezer") if self._version == 1 else None
        try:
            for path in set(self._paths.values()):
                path.mkdir()
                if path != late:
                    file = "tasks" if self._version == 1 else "cgroup.procs"
                    self._join_fds.append(self._open(path / file, os.O_WRONLY))
            if late is not None:
                freeze, procs = late / "cgroup.freeze", late / "cgroup.procs"
                self._late = self._open(freeze, os.O_RDONLY), self._open(procs, os.O_WRONLY)
            if memory := self._paths.get("memory"):
                name = "memory.events" if self._version == 2 else "memory.oom_control"
                self._oom_fd = self._open(memory / name, os.O_RDONLY)
            self._limit(limits)
        except OSError:
            self.try_remove()
            raise

    @property
    def freezes(self) -> bool:
        return "freezer" in self._paths

    def join(self) -> None:
        """Move the calling process, which has one thread, into every group."""
        for fd in self._join_fds:
            os.write(fd, b"0")
        if self._late is not None and os.pread(self._late[0], 1, 0) == b"1":
            os.write(self._late[1], b"0")  # `freeze` may have looked for members before this was one

    def oom_kills(self) -> int:
        """Processes that the memory limit has killed so far."""
        if self._oom_fd is None:
            return 0
        for line in os.pread(self._oom_fd, 4096, 0).splitlines():
            key, _, value = line.partition(b" ")
            if key == b"oom_kill":
                return int(value)
        return 0

    def freeze(self, frozen: bool) -> None:
        """Stop all its processes, or let them go on."""
        freezer = self._paths["freezer"]
        (freezer / "cgroup.freeze").write_text("1" if frozen else "0")
        if frozen and self._late is not None:
            for _ in range(_MAX_SWEEPS):  # what is in it cannot fork any more
                outside = set(_words(self._paths["pids"] / "cgroup.procs")) - set(_words(freezer / "cgroup.procs"))
                for pid in outside:
                    with contextlib.suppress(ProcessLookupError):
                        os.write(self._late[1], pid.encode())
                if not outside:
                    break

    def try_remove(self) -> bool:
        """Kill what is left in the groups and remove them; False while a process is still in one."""
        while self.fds:
            os.close(self.fds.pop())
        left = [path for path in set(self._paths.values()) if not _try_rmdir(path)]
        for path in left:
            _kill_members(path)
        return not left

    def _open(self, path: Path, flags: int) -> int:
        fd = os.open(path, flags | os.O_CLOEXEC)
        self.fds.append(fd)
        return fd

    def _limit(self, limits: Limits) -> None:
        if memory := self._paths.get("memory"):
            limit = memory / ("memory.max" if self._version == 2 else "memory.limit_in_bytes")
            limit.write_text(str(limits.memory_bytes))
            swap = memory / ("memory.swap.max" if self._version == 2 else "memory.memsw.limit_in_bytes")
            if swap.exists():  # no swap beyond memory; kernels without swap accounting lack the file
                swap.write_text("0" if self._version == 2 else str(limits.memory_bytes))
        if pids := self._paths.get("pids"):
            (pids / "pids.max").write_text(str(limits.pids))
        if limits.cpus is not None and (cpu := self._paths.get("cpu")):
            quota = int(limits.cpus * CPU_PERIOD_US)
            if self._version == 2:
                (cpu / "cpu.max").write_text(f"{quota} {CPU_PERIOD_US}")
            else:
                (cpu / "cpu.cfs_period_us").write_text(str(CPU_PERIOD_US))
                (cpu / "cpu.cfs_quota_us").write_text(str(quota))


def remove_base(base: str, *, wait_s: float = _REMOVE_WAIT_S) -> bool:
    """Kill whatever is in the groups under `base` and remove them. False if something outlived `wait_s`."""
    root = Path(base)
    deadline = time.monotonic() + wait_s
    while root.is_dir():
        folders = [Path(folder) for folder, _, _ in os.walk(root, topdown=False)]
        left = [folder for folder in folders if not _try_rmdir(folder)]
        for folder in left:
            _kill_members(folder)
        if left and time.monotonic() > deadline:
            return False
        if left:
            time.sleep(0.01)
    return True


def _kill_members(folder: Path) -> None:
    with contextlib.suppress(OSError):
        freeze = folder / "cgroup.freeze"
        if freeze.exists():
            freeze.write_text("0")
        for pid in (folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def _try_rmdir(path: Path) -> bool:
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def mounts() -> dict[str, str]:
    """Mount point per v1 controller; that of v2 under ''."""
    found: dict[str, str] = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, kind, options = line.split()[:4]
        if kind == "cgroup2":
            found.setdefault("", mount)
        elif kind == "cgroup":
            for controller in {"memory", "pids", "cpu"} & set(options.split(",")):
                found.setdefault(controller, mount)
    return found


def _make_base(mount: str | None, name: str) -> str | None:
    """A base at the root of a hierarchy that a trial process can join, or None."""
    return _try_base(Path(mount, name), controllers=()) if mount else None


def _v2_base_with_controllers(mount: str, name: str) -> str | None:
    """A base under the nearest group, from our own upwards, that hands out memory and pids."""
    own = next((line[3:] for line in _words(Path("/proc/self/cgroup")) if line.startswith("0::")), "/")
    start = Path(mount, own.lstrip("/"))
    for group in (start, *start.parents):
        offered = _words(group / "cgroup.subtree_control")
        if {"memory", "pids"} <= set(offered):
            controllers = tuple(c for c in _V2_CONTROLLERS if c in offered)
            if base := _try_base(group / name, controllers=controllers):
                return base
        if group == Path(mount):
            break
    return None


def _try_base(base: Path, *, controllers: tuple[str, ...]) -> str | None:
    trial = base / "trial"
    try:
        base.mkdir()
        if controllers:
            (base / "cgroup.subtree_control").write_text(" ".join(f"+{c}" for c in controllers))
        trial.mkdir()
        joined = _child_can_join(trial)
    except OSError:
        joined = False
    removed = _try_rmdir(trial)
    if joined and removed:
        return str(base)
    _try_rmdir(base)
    return None


def _child_can_join(group: Path) -> bool:
    pid = os.fork()
    if pid == 0:
        try:
            (group / "cgroup.procs").write_text("0")
            os._exit(0)
        except OSError:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0
