"""The torch thread: runs the core's steps, and between two of them whatever the HTTP front asked for."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

import torch

from agentrl.inference.embedded.core import EngineCore, Update
from agentrl.inference.embedded.requests import BadRequest
from agentrl.inference.embedded.sequence import Sequence, Snapshot
from agentrl.inference.embedded.stats import Stats
from agentrl.inference.embedded.weights import WeightsError
from agentrl.inference.engine import PauseMode

T = TypeVar("T")


class Worker:
    """Bridge between the event loop and the torch thread. Public methods are called from the loop's thread.

    A command's future completes after everything that the command ended was delivered. If the thread fails, `died` is
    called in the loop's thread with the error; nothing else will happen then.
    """

    def __init__(
        self,
        core: EngineCore,
        deliver: Callable[[list[Snapshot]], None],
        died: Callable[[BaseException], None],
    ) -> None:
        self._core = core
        self._deliver = deliver
        self._died = died
        self._loop = asyncio.get_running_loop()
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._updates: list[tuple[Update, asyncio.Future[int]]] = []
        self._thread = threading.Thread(target=self._run, name="torch", daemon=True)
        self.stats: Stats = core.stats()
        """As of the last step or command."""

    def start(self) -> None:
        self._thread.start()

    def submit(self, sequences: list[Sequence]) -> None:
        def command() -> None:
            ended = [self._core.submit(sequence) for sequence in sequences]
            self._send([snapshot for snapshot in ended if snapshot is not None])

        self._inbox.put(command)

    def forget(self, keys: set[int]) -> None:
        self._inbox.put(lambda: self._core.forget(keys))

    def abort(self, rid_prefix: str) -> asyncio.Future[None]:
        return self._call(lambda: self._send(self._core.abort(rid_prefix)))

    def pause(self, mode: PauseMode) -> asyncio.Future[None]:
        return self._call(lambda: self._send(self._core.pause(mode)))

    def resume(self) -> asyncio.Future[None]:
        return self._call(self._core.scheduler.resume)

    def flush(self) -> asyncio.Future[bool]:
        return self._call(self._core.flush)

    def release(self, tags: list[str] | None) -> asyncio.Future[None]:
        return self._call(lambda: self._core.release(tags))

    def reclaim(self, tags: list[str] | None) -> asyncio.Future[None]:
        return self._call(lambda: self._core.reclaim(tags))

    def label(self, version: str) -> asyncio.Future[None]:
        return self._call(lambda: self._core.label(version))

    def digests(self) -> asyncio.Future[dict[str, str]]:
        return self._call(self._core.digests)

    def update(self, update: Update, *, abort: bool) -> asyncio.Future[int]:
        """Load weights once what runs has ended or is paused; what arrives meanwhile waits. See EngineCore.update."""
        future: asyncio.Future[int] = self._loop.create_future()

        def command() -> None:
            if abort:
                self._send(self._core.abort(""))
            self._core.scheduler.fence()
            self._updates.append((update, future))

        self._inbox.put(command)
        return future

    # --- in the torch thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                worked = False
                while True:
                    self._run_commands(wait=not worked)
                    self._apply_updates()
                    snapshots = self._core.step()
                    worked = snapshots is not None
                    self.stats = self._core.stats()
                    self._send(snapshots or [])
        except BaseException as error:  # the thread's boundary: `died` ends the process, which cannot serve without it
            self._loop.call_soon_threadsafe(self._died, error)

    def _run_commands(self, *, wait: bool) -> None:
        if wait:
            self._inbox.get()()
        while True:
            try:
                command = self._inbox.get_nowait()
            except queue.Empty:
                return
            command()

    def _apply_updates(self) -> None:
        scheduler = self._core.scheduler
        while self._updates and scheduler.drained:
            update, future = self._updates.pop(0)
            if not future.cancelled():  # the caller may have gone away meanwhile: then nobody expects new weights
                self._settle(lambda update=update: self._core.update(update), future)  # type: ignore[misc]
            scheduler.unfence()
            if self._updates:
                scheduler.fence()

    def _send(self, snapshots: list[Snapshot]) -> None:
        if snapshots:
            self._loop.call_soon_threadsafe(self._deliver, snapshots)

    def _call(self, command: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        self._inbox.put(lambda: self._settle(command, future))
        return future

    def _settle(self, command: Callable[[], T], future: asyncio.Future[T]) -> None:
        """Run a command and complete its future in the loop's thread. What the caller caused is the caller's error."""
        try:
            result = command()
        except (BadRequest, WeightsError) as error:
            self._loop.call_soon_threadsafe(_fail, future, error)
        else:
            self.stats = self._core.stats()
            self._loop.call_soon_threadsafe(_complete, future, result)


def _complete(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[T], error: BadRequest | WeightsError) -> None:
    if not future.done():
        future.set_exception(error)
