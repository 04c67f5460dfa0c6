"""Time as the controller sees it.

Decisions never read a clock: they get the time as an argument. Effects read it here. `monotonic()` is the running
event loop's clock, so code that runs under a virtual-time loop sees virtual time without knowing it.
"""

from __future__ import annotations

import asyncio
import time
from contextvars import ContextVar

EPOCH_S: ContextVar[float | None] = ContextVar("epoch_s", default=None)
"""Under virtual time, what the wall clock says at the loop's time 0; None: the machine's own clock."""


def monotonic() -> float:
    """Seconds on the running event loop's clock. For durations and deadlines; not comparable across processes."""
    return asyncio.get_running_loop().time()


def wall() -> float:
    """Seconds since the Unix epoch. For records that people read; never for deadlines."""
    epoch_s = EPOCH_S.get()
    return time.time() if epoch_s is None else epoch_s + monotonic()
