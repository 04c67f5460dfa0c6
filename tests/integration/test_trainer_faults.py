"""What dies, dies for good or is repeated exactly: kills at every point of a step, lost controllers, bad batches."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from agentrl.trainer.config import TrainerConfig
from agentrl.trainer.job import ExitCode, ExitReport, checkpoint_folder, weights_folder
from agentrl.wire import StepDone
from tests.fixtures.tiny_model import make_tiny_model
from tests.fixtures.trainer_run import KillPoint, SmallController, make_batch, make_job, start_trainer

BATCHES = [make_batch(step=step) for step in (1, 2, 3)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def undisturbed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run directory of three steps on two ranks without a fault."""
    run_dir = tmp_path_factory.mktemp("undisturbed")
    asyncio.run(_run(SmallController(batches=BATCHES), run_dir, model))
    return run_dir


async def _run(
    controller: SmallController, run_dir: Path, model: Path, *, world_size: int = 2, kill_at: KillPoint | None = None
) -> list[int | None]:
    """One start of the trainer; the ranks' exit codes."""
    runner = await controller.start()
    try:
        job = make_job(run_dir, model, controller.url, epoch=controller.epoch, controller_retry_s=0.5)
        with start_trainer(job, world_size=world_size, kill_at=kill_at) as trainer:
            return await trainer.wait()
    finally:
        await runner.cleanup()


def _same_weights(one: Path, other: Path, version: int) -> bool:
    tensors, others = (load_file(weights_folder(run, version) / "model.safetensors") for run in (one, other))
    return all(torch.equal(tensors[name], others[name]) for name in tensors | others)


def _hidden(run_dir: Path) -> list[Path]:
    """What a killed writer left."""
    return list(run_dir.glob("*/.*"))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("folder", ["v000002", "step-000002"])
async def test_a_kill_between_export_checkpoint_and_report_repeats_the_step_exactly(
    model: Path, undisturbed: Path, tmp_path: Path, when: str, folder: str
) -> None:
    controller = SmallController(batches=BATCHES)
    codes = await _run(controller, tmp_path, model, kill_at=(when, folder))
    assert codes[0] == -signal.SIGKILL
    assert [report.version for report in controller.reports] == [1]

    applied = (when, folder) == ("after", "step-000002")
    assert checkpoint_folder(tmp_path, 2).exists() is applied
    controller.epoch = 2  # a restarted trainer may belong to a restarted controller
    assert await _run(controller, tmp_path, model) == [0, 0]
    first = next(request for request in controller.requests if request.epoch == 2)
    assert (first.version, first.batch_id) == ((2, "batch-2") if applied else (1, "batch-1"))
    assert {report.version: report.batch_id for report in controller.reports} == {
        1: "batch-1",
        2: "batch-2",
        3: "batch-3",
    }
    assert _same_weights(undisturbed, tmp_path, 2)
    assert _same_weights(undisturbed, tmp_path, 3)
    assert not _hidden(tmp_path)


async def test_a_kill_while_the_report_is_answered_sends_it_again(
    model: Path, undisturbed: Path, tmp_path: Path
) -> None:
    controller = SmallController(batches=BATCHES)
    runner = await controller.start()
    with start_trainer(make_job(tmp_path, model, controller.url), world_size=2) as trainer:

        def kill(report: StepDone) -> None:
            if report.version == 2:
                trainer.kill()

        controller.on_done = kill
        assert await trainer.wait() == [-signal.SIGKILL] * 2
    await runner.cleanup()
    controller.on_done = None
    assert await _run(controller, tmp_path, model) == [0, 0]
    second = [report for report in controller.reports if report.version == 2]
    assert len(second) > 1
    assert all(report == second[0] for report in second)
    assert _same_weights(undisturbed, tmp_path, 3)


async def test_a_checkpoint_loads_on_another_number_of_ranks(model: Path, undisturbed: Path, tmp_path: Path) -> None:
    await _run(SmallController(batches=BATCHES[:2]), tmp_path, model, world_size=1)
    controller = SmallController(batches=BATCHES)
    assert await _run(controller, tmp_path, model, world_size=3) == [0, 0, 0]
    assert [request.version for request in controller.requests] == [2, 3]
    one, other = (
        load_file(weights_folder(run, 3) / "model.safetensors")["model.embed_tokens.weight"]
        for run in (undisturbed, tmp_path)
    )
    assert float((one - other).norm() / one.norm()) < 1e-2


async def test_a_controller_of_another_epoch_ends_the_trainer(model: Path, tmp_path: Path) -> None:
    runner = await (controller := SmallController(batches=BATCHES, epoch=2)).start()
    job = make_job(tmp_path, model, controller.url, epoch=1)
    with start_trainer(job, world_size=2) as trainer:
        assert await trainer.wait() == [ExitCode.SUPERSEDED] * 2
    await runner.cleanup()
    report = ExitReport.load(job)
    assert report is not None
    assert report.code is ExitCode.SUPERSEDED


async def test_a_controller_that_comes_back_is_waited_for(model: Path, tmp_path: Path) -> None:
    controller = SmallController(batches=BATCHES[:1], failures_to_give=[503, 500])
    assert await _run(controller, tmp_path, model, world_size=1) == [0]
    assert [report.version for report in controller.reports] == [1]


async def test_a_controller_that_stays_away_ends_the_trainer(model: Path, tmp_path: Path) -> None:
    job = make_job(tmp_path, model, "http://127.0.0.1:9", controller_retry_s=0.3)
    with start_trainer(job, world_size=2) as trainer:
        assert await trainer.wait() == [ExitCode.UNREACHABLE] * 2


async def test_a_non_finite_loss_stops_with_the_episodes_and_leaves_no_weights(tmp_path: Path) -> None:
    poisoned = make_tiny_model(tmp_path / "poisoned", tied=False)
    weights = load_file(poisoned / "model.safetensors")
    weights["model.embed_tokens.weight"][33] = float("inf")  # a token that only one episode contains
    save_file(weights, poisoned / "model.safetensors", metadata={"format": "pt"})
    batch = make_batch()
    victim = batch.trajectories[5]
    ids = victim.ids_array().copy()
    ids[2] = 33
    batch.trajectories[5] = replace(victim, ids=ids.tobytes())
    controller = SmallController(batches=[batch])
    assert await _run(controller, tmp_path / "run", poisoned) == [ExitCode.BAD_BATCH] * 2
    report = ExitReport.load(tmp_path / "run" / "trainer.json")
    assert report is not None
    assert report.episodes == [victim.episode]
    assert victim.episode in report.message
    assert not controller.reports
    assert not weights_folder(tmp_path / "run", 1).exists()


async def test_a_gradient_that_overflows_stops_although_every_loss_is_finite(model: Path, tmp_path: Path) -> None:
    trajectories = [replace(t, reward=1e37 * t.reward) for t in BATCHES[0].trajectories]
    controller = SmallController(batches=[replace(BATCHES[0], trajectories=trajectories)])
    assert await _run(controller, tmp_path, model) == [ExitCode.BAD_BATCH] * 2
    report = ExitReport.load(tmp_path / "trainer.json")
    assert report is not None
    assert "every loss is finite" in report.message
    assert not weights_folder(tmp_path, 1).exists()


async def test_a_malformed_trajectory_is_refused_by_name(model: Path, tmp_path: Path) -> None:
    batch = make_batch()
    batch.trajectories[3] = replace(batch.trajectories[3], reward=float("nan"))
    assert await _run(SmallController(batches=[batch]), tmp_path, model) == [ExitCode.BAD_BATCH] * 2
    report = ExitReport.load(tmp_path / "trainer.json")
    assert report is not None
    assert report.episodes == [batch.trajectories[3].episode]


async def test_a_hung_rank_ends_the_others(model: Path, tmp_path: Path) -> None:
    controller = SmallController(batches=BATCHES)
    runner = await controller.start()
    config = TrainerConfig(lr_warmup_steps=0, collective_timeout_s=2.0)
    with start_trainer(make_job(tmp_path, model, controller.url, trainer=config), world_size=2) as trainer:

        def hang(_: StepDone) -> None:
            os.kill(trainer.ranks[1].pid or 0, signal.SIGSTOP)

        controller.on_done = hang
        await asyncio.to_thread(trainer.ranks[0].join)
        assert trainer.ranks[0].exitcode == ExitCode.CRASHED
    await runner.cleanup()


async def test_terminate_ends_a_rank_at_once(model: Path, tmp_path: Path) -> None:
    controller = SmallController(batches=BATCHES)
    runner = await controller.start()
    with start_trainer(make_job(tmp_path, model, controller.url)) as trainer:
        controller.on_done = lambda _: trainer.ranks[0].terminate()
        assert await trainer.wait() == [-signal.SIGTERM]
    await runner.cleanup()


async def test_torchrun_trains_and_its_death_leaves_no_rank(model: Path, tmp_path: Path) -> None:
    controller = SmallController(batches=BATCHES)
    runner = await controller.start()
    ranks: list[int] = []
    agent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("-m", "agentrl.trainer", "--job", str(make_job(tmp_path, model, controller.url))),
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )

    def kill_agent(report: StepDone) -> None:
        if report.version == 2 and not ranks:
            ranks.extend(_children(agent.pid))
            agent.kill()

    controller.on_done = kill_agent
    assert await agent.wait() == -signal.SIGKILL
    assert len(ranks) == 2
    await asyncio.gather(*(asyncio.to_thread(_wait_for_end, rank) for rank in ranks))
    await runner.cleanup()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _wait_for_end(pid: int) -> None:
    """Return when the process is gone; it is not our child, so its pidfd is waited for."""
    import select

    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], 30)[0], f"process {pid} is still alive"
    finally:
        os.close(descriptor)


def test_a_job_that_cannot_be_read_is_a_crash_with_its_reason(tmp_path: Path) -> None:
    job = tmp_path / "trainer.json"
    job.write_text("{}")
    with start_trainer(job) as trainer:
        assert asyncio.run(trainer.wait()) == [ExitCode.CRASHED]
    report = ExitReport.load(job)
    assert report is not None
    assert "controller_url" in report.message
