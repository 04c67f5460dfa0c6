"""A snapshot of a sandbox, from the request to the reply.

With nothing running in it, its written layer is sealed as it is, and a fresh one put upon it: that takes milliseconds
whatever its size. With something running, which may write to files that it has open, the layer is copied while all
stands still.
"""

from __future__ import annotations

from collections.abc import Callable

from agentrl.sandbox.supervisor.box import Box
from agentrl.sandbox.supervisor.helper import Helper
from agentrl.sandbox.supervisor.reactor import Reactor
from agentrl.sandbox.supervisor.stage import Stack

Keep = Callable[[Stack], None]


def take_snapshot(reactor: Reactor, box: Box, request_id: int, keep: Keep) -> None:
    """Seal the box's files; `keep` gets the layers, in use, before the reply. Raises OSError if it cannot begin."""
    root = box.root
    if root is None:
        raise OSError("no snapshots on this machine: it has no overlay for sandboxes")

    def counted(living: int) -> None:
        _guarded(box, request_id, lambda: _copy(living) if living else _exchange())

    def _exchange() -> None:
        swap, done = root.exchange(box.first_pid, box.pidfd)

        def ended(problem: str | None) -> None:
            if not box.waits(request_id):
                return  # the sandbox ended meanwhile, and its root is closed
            if problem is None:
                _finish(box, request_id, done(), 0, keep)
            else:
                box.fail(request_id, f"its files could not be sealed: {problem}")

        Helper(reactor, swap, ended)

    def _copy(living: int) -> None:
        def still() -> None:
            copy, done = root.copy()

            def ended(problem: str | None) -> None:
                stack = done(problem is None)
                if problem is None:
                    _finish(box, request_id, stack, living, keep)
                else:
                    box.fail(request_id, f"its files could not be copied: {problem}")

            Helper(reactor, copy, ended)

        box.stand_still(lambda: _guarded(box, request_id, still))

    box.hold(request_id, counted)


def export(reactor: Reactor, box: Box, request_id: int, target: str) -> None:
    """Copy the box's written layer to an empty folder of the host. Raises OSError if it cannot begin."""
    root = box.root
    if root is None:
        raise OSError("no images are built on this machine: it has no overlay for sandboxes")

    def begin() -> None:
        def ended(problem: str | None) -> None:
            if problem is None:
                box.answer(request_id, {})
            else:
                box.fail(request_id, f"its files could not be copied: {problem}")

        Helper(reactor, root.export(target), ended)

    box.hold(request_id, lambda living: _guarded(box, request_id, begin))


def _finish(box: Box, request_id: int, stack: Stack, living: int, keep: Keep) -> None:
    if box.answer(request_id, {"leftover_processes": living}, first=lambda: keep(stack)):
        return
    stack.leave()  # the sandbox ended meanwhile: nobody will ask for it


def _guarded(box: Box, request_id: int, body: Callable[[], None]) -> None:
    try:
        body()
    except OSError as error:  # no memory, processes or descriptors left; layers too deep for a path
        box.fail(request_id, f"no snapshot: {error}")
