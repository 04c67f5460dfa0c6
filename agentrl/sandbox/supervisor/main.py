"""The supervisor's entry: requests in, replies out, until the owner is gone.

Requests are frames {"id", "op", ...}; each gets one reply {"id", ...} or {"id", "error", "kind", "errno"}. When the
socket or the owner's process ends, every sandbox is killed, its control groups are removed, and the supervisor exits.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import socket
import sys

from agentrl.sandbox.death import Death
from agentrl.sandbox.supervisor import frames, seccomp, syscalls
from agentrl.sandbox.supervisor.box import Box, Gone
from agentrl.sandbox.supervisor.cgroups import Cgroup, Hierarchies, Limits, create_base, remove_base
from agentrl.sandbox.supervisor.connection import Connection
from agentrl.sandbox.supervisor.helper import Helper
from agentrl.sandbox.supervisor.merge import remove
from agentrl.sandbox.supervisor.processes import reap_orphans, rename
from agentrl.sandbox.supervisor.reactor import Reactor
from agentrl.sandbox.supervisor.root import Root
from agentrl.sandbox.supervisor.sealing import export, take_snapshot
from agentrl.sandbox.supervisor.stage import BASE, Stack, Stage, enter_stage
from agentrl.sandbox.supervisor.userns import IdMap, Standing, take_standing

_LAST_WAIT_S = 10.0
_TITLE = "agentrl sandboxes"
_CLOSED = "closed by its owner"


class Server:
    """Serves one owner over one socket."""

    def __init__(self, sock: socket.socket, base_name: str, ids: IdMap, stage: Stage | None) -> None:
        """`base_name` is that of its control groups, empty for none; without a `stage` bwrap makes all files."""
        self._reactor = Reactor()
        self._ids, self._stage = ids, stage
        self._boxes: dict[str, Box] = {}
        self._snapshots: dict[str, Stack] = {}
        self._unwanted: set[str] = set()
        """Snapshots that were released before they were there: whoever asked for them has gone."""
        self._lost: dict[str, tuple[str, Death | None]] = {}
        """Why and how sandboxes ended that their owner has not closed yet."""
        self._hierarchies = create_base(base_name) if base_name else Hierarchies(0)
        self._ending = False
        self._connection = Connection(self._reactor, sock, self._handle, self._owner_gone)

    def run(self) -> None:
        """Serve until the owner is gone and nothing is left of its sandboxes."""
        owner = os.pidfd_open(os.getppid())
        self._reactor.on_readable(owner, self._owner_gone)
        self._connection.send(
            {
                "id": 0,
                "version": self._hierarchies.version,
                "cpu": self._hierarchies.cpu is not None,
                "bases": self._hierarchies.bases(),
            }
        )
        self._reactor.run()
        for base in self._hierarchies.bases():
            remove_base(base)

    def _handle(self, header: frames.Header, payload: bytes) -> None:
        try:
            self._serve(header["op"], header, payload)
        except OSError as error:  # no such sandbox, no descriptors or processes left, a control group refused
            death = error.death if isinstance(error, Gone) else None
            problem = {"error": str(error), "kind": "SandboxError", "errno": error.errno, "death": death}
            self._connection.send({"id": header["id"], **problem})

    def _serve(self, operation: str, header: frames.Header, payload: bytes) -> None:
        if operation == "base":
            assert self._stage is not None
            self._stage.base(header["entries"], payload)
            self._connection.send({"id": header["id"]})
            return
        if operation == "release":
            self._release(header)
            return
        if operation == "discard":
            self._discard(header)
            return
        name = header["box"]
        if operation == "start":
            self._start(name, header, payload)
        elif operation == "close":
            self._close(name, header)
        elif name not in self._boxes:
            reason, death = self._lost.get(name, (_CLOSED, None))
            raise Gone(f"the sandbox is gone: {reason}", death)
        elif operation == "cancel":
            self._boxes[name].cancel(header)
        elif operation == "snapshot":
            snapshot = header["snapshot"]
            take_snapshot(self._reactor, self._boxes[name], header["id"], lambda stack: self._keep(snapshot, stack))
        elif operation == "export":
            export(self._reactor, self._boxes[name], header["id"], header["target"])
        elif operation == "freeze":
            self._boxes[name].freeze(header)
        elif operation == "assign":
            self._boxes[name].assign(header)
        else:
            self._boxes[name].request(header, payload)

    def _start(self, name: str, header: frames.Header, payload: bytes) -> None:
        limits = Limits(header["memory_bytes"], header["pids"], header["cpus"])
        cgroup = Cgroup(self._hierarchies, name, limits)
        root: Root | None = None
        try:
            root = self._root(header["root"])
            box = Box(
                self._reactor,
                argv=header["argv"],
                root=root,
                ids=self._ids,
                cgroup=cgroup,
                limits=limits,
                rlimits=self._hierarchies.version == 0,
                filter_program=seccomp.program() if header["seccomp"] else b"",
                start_id=header["id"],
                files=(header["entries"], payload),
                start_timeout_s=header["timeout_s"],
                lifetime_s=header["lifetime_s"],
                send=self._connection.send,
                reap=self._reap,
                on_gone=lambda: self._gone(name),
            )
        except OSError:
            cgroup.try_remove()
            if root is not None:
                root.close()
            raise
        self._boxes[name] = box

    def _root(self, wanted: frames.Header | None) -> Root | None:
        """The root that a start asks for: upon a snapshot, or upon layers of the cache and the base."""
        if wanted is None:
            return None
        assert self._stage is not None
        if wanted["snapshot"] is None:
            below = Stack((*(self._stage.attach(layer) for layer in wanted["layers"]), BASE))
        elif wanted["snapshot"] in self._snapshots:
            below = self._snapshots[wanted["snapshot"]]
        else:
            raise FileNotFoundError(f"there is no snapshot {wanted['snapshot']}")
        if wanted["writable_system"]:
            self._stage.make_system_writable()
        return Root(self._stage, below, size_bytes=wanted["disk_bytes"], writable_system=wanted["writable_system"])

    def _keep(self, name: str, stack: Stack) -> None:
        if name in self._unwanted:
            self._unwanted.remove(name)
            stack.leave()
        else:
            self._snapshots[name] = stack

    def _discard(self, header: frames.Header) -> None:
        """Remove a folder of the host with files that may belong to the sandboxes' users."""

        def ended(problem: str | None) -> None:
            error = {} if problem is None else {"error": problem, "kind": "SandboxError", "errno": None}
            self._connection.send({"id": header["id"], **error})

        Helper(self._reactor, lambda: remove(header["folder"]), ended)

    def _release(self, header: frames.Header) -> None:
        stack = self._snapshots.pop(header["snapshot"], None)
        if stack is not None:
            stack.leave()
        else:
            self._unwanted.add(header["snapshot"])
        self._connection.send({"id": header["id"]})

    def _close(self, name: str, header: frames.Header) -> None:
        box = self._boxes.get(name)
        if box is not None:
            box.close(header["id"], _CLOSED)
        else:
            self._lost.pop(name, None)
            self._connection.send({"id": header["id"], "problem": None})

    def _reap(self) -> None:
        reap_orphans({pid for box in self._boxes.values() for pid in box.children} | Helper.running)

    def _gone(self, name: str) -> None:
        box = self._boxes.pop(name)
        if box.reason != _CLOSED:
            self._lost[name] = box.reason, box.death
        if self._ending and not self._boxes:
            self._reactor.stop()

    def _owner_gone(self) -> None:
        if self._ending:
            return
        self._ending = True
        self._connection.close()
        self._reactor.call_later(_LAST_WAIT_S, self._reactor.stop)
        if not self._boxes:
            self._reactor.stop()
        for box in list(self._boxes.values()):
            box.kill("the owner is gone")


def main() -> None:
    """Arguments: descriptor of the socket; in JSON base_name, standing, ids, stage (or null), place, merged."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # ends by its owner's end only, so that it can clean up
    settings = json.loads(sys.argv[2])
    ids = IdMap(*settings["ids"])
    standing = Standing(settings["standing"])
    rename(_TITLE)
    syscalls.adopt_orphans()
    syscalls.leave_session_keyring()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    take_standing(standing)
    stage = None
    if settings["stage"] is not None:
        merged = tuple(settings["merged"])
        userxattr = standing is not Standing.ROOT
        stage = enter_stage(settings["stage"], settings["place"], ids, merged, userxattr=userxattr)
    server = Server(socket.socket(fileno=int(sys.argv[1])), settings["base_name"], ids, stage)
    gc.freeze()
    server.run()
