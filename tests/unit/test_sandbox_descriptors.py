"""Small pieces of the supervisor that need no sandbox."""

from __future__ import annotations

import fcntl
import os
import resource

from agentrl.sandbox.supervisor.processes import is_readable


def test_descriptors_of_any_number_are_looked_at() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    reading, writing = os.pipe()
    high = fcntl.fcntl(reading, fcntl.F_DUPFD, 1500)
    assert high >= 1500 and not is_readable(high)
    os.write(writing, b"x")
    assert is_readable(high)
    for fd in (reading, writing, high):
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
