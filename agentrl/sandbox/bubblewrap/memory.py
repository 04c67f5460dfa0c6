"""How much memory this machine has, and how much it could still give."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_GROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)
"""Limit and use of the outermost control group in sight: in a container its own. cgroup v2, then v1."""


def available_bytes() -> int:
    """What the kernel says could be used without swapping, or what our container has left, whichever is less."""
    left = [_meminfo("MemAvailable")]
    for limit, used in _GROUPS:
        with suppress(OSError, ValueError):  # not that version, or "max"
            left.append(int(limit.read_text()) - int(used.read_text()))
    return max(min(left), 0)


def total_bytes() -> int:
    """What this machine has, or our container may use, whichever is less."""
    most = [_meminfo("MemTotal")]
    for limit, _ in _GROUPS:
        with suppress(OSError, ValueError):  # not that version, or "max"
            most.append(int(limit.read_text()))
    return min(most)


def _meminfo(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    return 0  # a kernel from before 2014 does not say: nothing is started ahead
