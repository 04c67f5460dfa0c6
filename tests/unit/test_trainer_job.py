"""The trainer's job file, exit report and schedule."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.errors import UserError
from agentrl.trainer.config import Advantage, AlgorithmConfig, LrSchedule, TrainerConfig
from agentrl.trainer.job import ExitCode, ExitReport, TrainerJob
from agentrl.trainer.schedule import learning_rate


def _job(temperature: float = 0.8) -> TrainerJob:
    return TrainerJob(
        controller_url="http://127.0.0.1:1",
        token="token",
        epoch=3,
        run_dir="/runs/x",
        model_path="/models/x",
        temperature=temperature,
        seed=1,
        total_steps=25,
        algorithm=AlgorithmConfig(advantage=Advantage.std),
    )


def test_a_job_survives_its_file(tmp_path: Path) -> None:
    _job().save(tmp_path / "job.json")
    assert TrainerJob.load(tmp_path / "job.json") == _job()


def test_greedy_sampling_cannot_be_trained_on(tmp_path: Path) -> None:
    _job(temperature=0).save(tmp_path / "job.json")
    with pytest.raises(UserError, match=r"temperature 0.* \(set agent.temperature above 0\)"):
        TrainerJob.load(tmp_path / "job.json")


@pytest.mark.parametrize("text", ["", "{}", '{"epoch": "x"}'])
def test_a_malformed_job_is_a_user_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.json").write_text(text)
    with pytest.raises(UserError, match="cannot read trainer job"):
        TrainerJob.load(tmp_path / "job.json")


def test_a_missing_job_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read trainer job"):
        TrainerJob.load(tmp_path / "none.json")


def test_an_exit_report_survives_its_file_and_can_be_absent(tmp_path: Path) -> None:
    job_file = tmp_path / "job.json"
    assert ExitReport.load(job_file) is None
    report = ExitReport(code=ExitCode.BAD_BATCH, message="m", episodes=["e"])
    report.save(job_file)
    assert ExitReport.load(job_file) == report
    ExitReport.remove(job_file)
    assert ExitReport.load(job_file) is None


def test_the_job_module_does_not_import_torch() -> None:
    code = "import sys, agentrl.trainer.job, agentrl.trainer.batching; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_learning_rate_warms_up_linearly_and_then_stays() -> None:
    config = TrainerConfig(lr=1.0, lr_warmup_steps=4)
    assert [learning_rate(step, config, 25) for step in (1, 2, 4, 9)] == [0.25, 0.5, 1.0, 1.0]
    assert learning_rate(1, TrainerConfig(lr=1.0, lr_warmup_steps=0), 25) == 1.0


@pytest.mark.parametrize(("schedule", "middle"), [(LrSchedule.linear, 0.55), (LrSchedule.cosine, 0.55)])
def test_a_falling_learning_rate_reaches_its_share_at_the_last_step_and_stays(
    schedule: LrSchedule, middle: float
) -> None:
    config = TrainerConfig(lr=1.0, lr_warmup_steps=4, lr_schedule=schedule, lr_final_share=0.1)
    rates = [learning_rate(step, config, 24) for step in (4, 14, 24, 40)]
    assert rates == pytest.approx([1.0, middle, 0.1, 0.1])


def test_a_cosine_falls_slowly_first() -> None:
    linear, cosine = (
        TrainerConfig(lr=1.0, lr_warmup_steps=0, lr_schedule=schedule)
        for schedule in (LrSchedule.linear, LrSchedule.cosine)
    )
    assert learning_rate(2, cosine, 20) > learning_rate(2, linear, 20)
    assert learning_rate(18, cosine, 20) < learning_rate(18, linear, 20)
