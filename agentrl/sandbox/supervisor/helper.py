"""Work that may take long, in a forked process: the supervisor serves on, and is told when it is done."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import ClassVar

from agentrl.sandbox.supervisor.processes import describe_status, run_and_exit
from agentrl.sandbox.supervisor.reactor import Reactor

_MAX_PROBLEM_BYTES = 4096


class Helper:
    """Runs `body` in a child, and calls `done` once: with None, or with what went wrong. Raises OSError."""

    running: ClassVar[set[int]] = set()
    """Pids of all helpers, which wait for themselves."""

    def __init__(self, reactor: Reactor, body: Callable[[], None], done: Callable[[str | None], None]) -> None:
        self._reactor, self._done = reactor, done
        self._problem_fd, problem_write = os.pipe()
        try:
            self._pid = os.fork()
        except OSError:
            os.close(self._problem_fd)
            os.close(problem_write)
            raise
        if self._pid == 0:
            run_and_exit(lambda: _run(body, problem_write))
        os.close(problem_write)
        self.running.add(self._pid)
        self._pidfd = os.pidfd_open(self._pid)
        reactor.on_readable(self._pidfd, self._ended)

    def _ended(self) -> None:
        self._reactor.forget_and_close(self._pidfd)
        status = os.waitpid(self._pid, 0)[1]
        self.running.discard(self._pid)
        said = os.read(self._problem_fd, _MAX_PROBLEM_BYTES).decode(errors="replace")
        os.close(self._problem_fd)
        self._done(None if status == 0 else said or f"its helper {describe_status(status)}")


def _run(body: Callable[[], None], problem_fd: int) -> None:
    try:
        body()
    except OSError as error:
        os.write(problem_fd, f"{error}"[:_MAX_PROBLEM_BYTES].encode(errors="replace"))
        raise
