"""Small pieces of fork, exec and wait that the supervisor's children share."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import NoReturn

_PF_EXITING = 0x4


def close_other_fds(keep: Iterable[int]) -> None:
    """Close every descriptor but those in `keep`."""
    low = 0
    for fd in (*sorted(set(keep)), os.sysconf("SC_OPEN_MAX")):
        if low < fd:  # an empty range would close everything
            os.closerange(low, fd)
        low = fd + 1


def write_all(fd: int, data: bytes) -> None:
    """Write to a blocking descriptor until everything is out."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def is_readable(fd: int) -> bool:
    """Whether reading would not block: there is data, an end, or for a pidfd a process that ended."""
    poll = select.poll()  # select(2) takes no descriptor over 1,023, and many sandboxes have more
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def fork_and_wait(body: Callable[[], None]) -> bool:
    """Run `body` in a child; whether it ended without an error."""
    pid = os.fork()
    if pid == 0:
        run_and_exit(body)
    return os.waitpid(pid, 0)[1] == 0


def run_and_exit(body: Callable[[], None]) -> NoReturn:
    """Run `body`, then leave the process without running anything of the parent's: 0, or 1 after an error."""
    code = 1
    try:
        body()
        code = 0
    finally:
        os._exit(code)


def reap_orphans(known: Collection[int]) -> None:
    """Take the exit statuses of children that are not in `known`: those adopted from processes that died."""
    with contextlib.suppress(OSError):  # a kernel without this list: they are zombies until we end
        for word in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            if int(word) not in known:
                os.waitpid(int(word), os.WNOHANG)


def rename(title: str) -> None:
    """Show `title` as this process's command line, and so as that of its forks: they must tell nothing of the host."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    text = title.encode()[: end - start - 1].ljust(end - start, b"\0")
    with open("/proc/self/mem", "r+b", buffering=0) as memory:  # noqa: PTH123 (a seek far beyond a file's size)
        memory.seek(start)
        memory.write(text)


def is_exiting(pid: int) -> bool:
    """Whether a process of ours is gone or on its way out, before it can be waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return True
    return fields[0] in "ZX" or bool(int(fields[6]) & _PF_EXITING)


def describe_status(status: int) -> str:
    """A wait status in words."""
    if os.WIFSIGNALED(status):
        return f"was killed by signal {os.WTERMSIG(status)}"
    code = os.WEXITSTATUS(status)
    if code > 128:
        return f"saw its first process killed by signal {code - 128}"
    return f"exited with {code}"
