"""The exchange with the trainer: one batch per step, applied once, whoever dies between two messages."""

from __future__ import annotations

import asyncio

import pytest

from agentrl.controller.trainer_desk import TrainerDesk
from agentrl.errors import Superseded
from agentrl.wire import NextRequest, RunFinished, StepDone, TrainBatch


def batch(step: int) -> TrainBatch:
    return TrainBatch(batch_id=f"b{step}", step=step, trajectories=[])


def desk(applied: int = 0) -> TrainerDesk:
    return TrainerDesk(epoch=1, applied=applied, load_batch=batch)


def ask(version: int, epoch: int = 1) -> NextRequest:
    return NextRequest(epoch=epoch, version=version, batch_id=None)


def done(step: int, batch_id: str | None = None, epoch: int = 1) -> StepDone:
    return StepDone(epoch=epoch, version=step, batch_id=batch_id or f"b{step}", weights_path="/w", metrics={})


async def test_batch_is_handed_out_when_it_is_offered_and_again_when_asked_again() -> None:
    counter = desk()
    asked = asyncio.create_task(counter.next(ask(0)))
    training = asyncio.create_task(counter.train(batch(1)))
    assert (await asked) == batch(1)
    assert (await counter.next(ask(0))) == batch(1)
    assert (await counter.done(done(1))).applied
    assert (await training).version == 1


async def test_step_reported_twice_is_applied_once() -> None:
    counter = desk()
    training = asyncio.create_task(counter.train(batch(1)))
    await counter.next(ask(0))
    assert (await counter.done(done(1))).applied
    assert not (await counter.done(done(1))).applied
    await training


async def test_step_reported_before_a_restarted_controller_offers_it_again_is_not_lost() -> None:
    counter = desk(applied=1)
    assert (await counter.done(done(2))).applied
    assert (await counter.train(batch(2))).batch_id == "b2"


async def test_report_from_a_step_long_applied_changes_nothing() -> None:
    counter = desk(applied=1)
    training = asyncio.create_task(counter.train(batch(2)))
    await counter.next(ask(1))
    assert not (await counter.done(done(1))).applied
    assert not training.done()
    await counter.done(done(2))
    await training


async def test_trainer_with_an_older_checkpoint_gets_the_recorded_batches_again() -> None:
    counter = desk(applied=3)
    assert await counter.next(ask(1)) == batch(2)


async def test_another_epoch_is_refused() -> None:
    counter = desk()
    with pytest.raises(Superseded):
        await counter.next(ask(0, epoch=2))
    with pytest.raises(Superseded):
        await counter.done(done(1, epoch=2))


async def test_version_made_from_another_batch_is_refused() -> None:
    counter = desk()
    training = asyncio.create_task(counter.train(batch(1)))
    await counter.next(ask(0))
    with pytest.raises(Superseded):
        await counter.done(done(1, batch_id="other"))
    training.cancel()


async def test_finished_run_sends_the_waiting_trainer_home() -> None:
    counter = desk()
    asked = asyncio.create_task(counter.next(ask(0)))
    await asyncio.sleep(0)
    counter.finish("enough")
    assert await asked == RunFinished(reason="enough")
