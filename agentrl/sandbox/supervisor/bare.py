"""A sandbox without isolation: a door that stays outside of any namespace, and ends what it started and made.

Started by its owner in place of a supervisor, one for each sandbox. It adopts orphans, so that whatever commands start
descends from it, daemons too. When it is told to close, when its lifetime is over or when its owner is gone, it kills
them all and removes the folders of the sandbox.
"""

from __future__ import annotations

import getpass
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from agentrl.sandbox.death import Death
from agentrl.sandbox.supervisor import frames, syscalls
from agentrl.sandbox.supervisor.command import Command, UnknownUser, limit
from agentrl.sandbox.supervisor.crowd import Descendants, kill_all, signal_all
from agentrl.sandbox.supervisor.door import Door
from agentrl.sandbox.supervisor.lifetime import Lifetime
from agentrl.sandbox.supervisor.merge import remove
from agentrl.sandbox.supervisor.processes import reap_orphans

MARK = "AGENTRL_SANDBOX"
"""Variable of every command's environment, by which its processes are found when the door was killed."""


@dataclass(frozen=True)
class Host:
    """A `Place`: this machine itself."""

    door: int
    """Pid of whom all in it descend from."""
    mark: str
    """Value of MARK."""
    home: str
    """HOME of commands: a folder of the sandbox's own, or what one episode leaves there would be the next one's."""

    @property
    def crowd(self) -> Descendants:
        return Descendants(self.door)

    def enter(self, command: Command) -> dict[str, str]:
        """See `Place.enter`. There is no user but ours."""
        if command.user not in (None, "", own_name(), str(os.geteuid())):
            raise UnknownUser(f"user {command.user}: without isolation commands run as {own_name()} only")
        syscalls.die_with_parent(signal.SIGKILL)
        limit(command.limits)
        return {"HOME": self.home, MARK: self.mark}

    def oom_kills(self) -> int:
        """No limit of ours holds memory."""
        return 0


def own_name() -> str:
    """Who we are, to people."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container that was started with a number
        return str(os.geteuid())


class BareDoor(Door):
    """The door of one sandbox, which also does what a supervisor does for others."""

    def __init__(self, place: Host, sock: socket.socket, box: str, folders: list[str], lifetime_s: float) -> None:
        super().__init__(place, sock)
        self._box, self._folders = box, folders
        self._reason: str | None = None
        """Why it ended; None while it lives."""
        self._death: Death | None = None
        self._problem: str | None = None
        """What could not be ended or removed."""
        over = f"its lifetime of {lifetime_s:g} s is over"
        self._lifetime = Lifetime(self._reactor, lifetime_s, lambda: self.end(over, Death.EXPIRED))
        self._operations |= {"assign": self._assign, "freeze": self._freeze, "close": self._close}
        self._connection.send({"id": 0})

    def end(self, reason: str, death: Death | None = None) -> None:
        """Kill all that runs in it and remove its folders. What waits for a result gets `reason`. Idempotent."""
        if self._reason is not None:
            return
        self._reason, self._death = reason, death
        self._lifetime.end()
        cut = [] if self._running is None else [self._running]
        cut += self._waiting
        self._waiting.clear()
        for _, execution in cut:
            execution.fail(f"the sandbox is gone: {reason}", death=death)
        _, left = kill_all(self._place.crowd)
        self._problem = f"{left} processes outlive SIGKILL" if left else remove_folders(self._folders)

    def _handle(self, header: frames.Header, payload: bytes) -> None:
        if self._reason is None or header["op"] == "close":
            super()._handle(header, payload)
        elif header["op"] != "cancel":
            gone = {"error": f"the sandbox is gone: {self._reason}", "kind": "SandboxError", "errno": None}
            self._connection.send({"id": header["id"], **gone, "death": self._death})

    def _exec(self, header: frames.Header, payload: bytes) -> None:
        if self._running is None:  # else its own child, whose status it wants, could be among them
            reap_orphans(())
        super()._exec(header, payload)

    def _assign(self, header: frames.Header, payload: bytes) -> tuple[frames.Header, bytes]:
        """It was handed out: its lifetime begins."""
        self._lifetime.restart()
        return self._probe(header, payload)

    def _freeze(self, header: frames.Header, payload: bytes) -> tuple[frames.Header, bytes]:
        frozen = header["frozen"]
        (self._lifetime.stand_still if frozen else self._lifetime.run)()
        self._set_frozen(frozen)
        signal_all(self._place.crowd, signal.SIGSTOP if frozen else signal.SIGCONT)
        return {}, b""

    def _close(self, header: frames.Header, payload: bytes) -> tuple[frames.Header, bytes]:
        self.end("closed by its owner")
        return {"problem": self._problem}, b""


def remove_folders(folders: Iterable[str]) -> str | None:
    """Remove them with all that is in them. Returns what stays, and why; never follows a link or goes into a mount."""
    problems = []
    for folder in folders:
        if mounted := _mounts_below(folder):
            problems.append(f"{folder}: something is mounted on {mounted[0]}")
            continue
        try:
            remove(folder)
        except OSError as error:
            problems.append(f"{error.filename}: {error.strerror}")
    return "; ".join(problems) or None


def _mounts_below(folder: str) -> list[str]:
    """Where something is mounted on a folder or below it. Spaces and the like are octal in mountinfo: those escape
    alike in what is compared."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if f"{point}/".startswith(f"{folder.rstrip('/')}/")]


def main() -> None:
    """Arguments: descriptor of the socket; in JSON box, mark, home, folders, lifetime_s."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # ends by its owner's end only, so that it can clean up
    settings = json.loads(sys.argv[2])
    os.dup2(1, 2)
    os.umask(0o022)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    syscalls.adopt_orphans()
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)  # commands must not speak for their door
    place = Host(os.getpid(), settings["mark"], settings["home"])
    door = BareDoor(place, sock, settings["box"], settings["folders"], settings["lifetime_s"])
    door.run()
    door.end("its owner is gone")
