"""The torch thread's boundary: what fails in it is told, once, in the loop's thread."""

from __future__ import annotations

import asyncio
from pathlib import Path

import torch

from agentrl.inference.embedded.core import EngineCore
from agentrl.inference.embedded.model import open_model
from agentrl.inference.embedded.scheduler import Limits
from agentrl.inference.embedded.sequence import Sampling, Sequence, Snapshot
from agentrl.inference.embedded.worker import Worker
from tests.fixtures.engine import save_random_model, tiny_llama_config


def make_core(folder: Path) -> EngineCore:
    save_random_model(folder, tiny_llama_config())
    return EngineCore(
        open_model(folder, dtype=torch.float32, context_length=64),
        folder,
        limits=Limits(max_running=2, max_total_tokens=128, prefill_tokens=16),
        context_length=64,
        version="0",
        dtype=torch.float32,
    )


def request(key: int) -> Sequence:
    return Sequence(key=key, rid=f"r-{key}", tokens=[1, 2], num_prompt=2, sampling=Sampling(max_new_tokens=3), seed=key)


async def test_what_a_command_ended_is_delivered_before_the_command_completes(tmp_path: Path) -> None:
    delivered: list[Snapshot] = []
    failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    worker = Worker(make_core(tmp_path), delivered.extend, failed.set_result)
    worker.start()
    await worker.resume()
    worker.submit([request(1)])
    await worker.abort("")
    assert [snapshot.key for snapshot in delivered] == [1]
    assert not failed.done()


async def test_a_failing_step_is_reported(tmp_path: Path) -> None:
    core = make_core(tmp_path)
    core._model.release()
    died: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    worker = Worker(core, lambda _: None, died.set_result)
    worker.start()
    worker.submit([request(1)])
    assert isinstance(await died, AssertionError)
