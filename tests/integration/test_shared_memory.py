"""Weights in shared memory are gone when everybody that knew of them was killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import pytest

from agentrl.controller.lifecycle.shared_memory import reap_shared_memory
from agentrl.errors import AgentrlError
from agentrl.trainer.job import SHARED_MEMORY, ManagerNote, shared_memory_notes

_spawn = multiprocessing.get_context("spawn")


def hold(run_dir: Path, ready: Connection) -> None:
    """Share weights and wait to be killed."""
    import torch

    from agentrl.trainer.shared_memory import SharedMemory

    held = SharedMemory(run_dir).share({"a": torch.ones(1000), "b": torch.ones(10, 10)})
    ready.send(len(held))
    signal.pause()


def test_what_a_killed_trainer_and_its_manager_leave_is_removed(tmp_path: Path) -> None:
    ours, theirs = _spawn.Pipe()
    trainer = _spawn.Process(target=hold, args=(tmp_path, theirs))
    trainer.start()
    assert ours.recv() == 2
    notes = shared_memory_notes(tmp_path)
    (piece,) = [SHARED_MEMORY / note.name for note in notes.glob("torch_*")]
    (manager,) = [msgspec.json.decode(note.read_bytes(), type=ManagerNote) for note in notes.glob("manager-*")]
    assert piece.exists() and Path(manager.socket).exists()
    os.kill(manager.pid, signal.SIGKILL)
    trainer.kill()
    trainer.join()
    assert piece.exists()
    reap_shared_memory(tmp_path)
    assert not piece.exists() and not Path(manager.socket).parent.exists()
    assert not list(notes.iterdir())


def test_no_room_is_an_error_and_not_a_crash(tmp_path: Path) -> None:
    import torch

    from agentrl.trainer.shared_memory import SharedMemory

    with pytest.raises(AgentrlError, match="MiB free"):
        SharedMemory(tmp_path).share({"huge": torch.empty(1 << 45, dtype=torch.int8, device="meta")})
