"""Time as the controller sees it.

Decisions never read a clock: they get the time as an argument. Effects read it here. `monotonic()` is the running
event loop's clock, so code that runs under a virtual-time loop sees virtual time without knowing it.
"""

from __future__ import annotations

import asyncio
import time


def monotonic() -> float:
    """Seconds on the running event loop's clock. For durations and deadlines; not comparable across processes."""
    return asyncio.get_running_loop().time()


def wall() -> float:
    """Seconds since the Unix epoch. For records that people read; never for deadlines."""
    return time.time()
