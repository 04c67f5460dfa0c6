"""Whole runs with real engines, sandboxes and trainer ranks, undisturbed and disturbed."""

from __future__ import annotations

import json
import os
import select
import signal
from collections import Counter

from agentrl.controller.fleet.publication import TOLERANCES
from agentrl.inference.config import Dtype
from agentrl.ledger.accounts import read_balance, read_gpu_time
from agentrl.ledger.reader import LedgerReader
from tests.e2e.job import Lab


def test_run_reaches_its_last_step_and_says_what_it_came_to(lab: Lab) -> None:
    job = lab.launch()
    assert job.end() == 0, (lab.folder / "stderr.log").read_text()
    lab.check_each_group_trained_at_most_once(4)
    summary = lab.summary()
    assert summary["status"] == "finished"
    assert summary["steps"] == 4
    assert {"reward_first", "reward_last", "wall_s", "time_to_batch_s", "verdicts", "policy_lag", "seed"} < set(summary)
    assert set(summary["time_to_batch_s"]) == {"mean", "p50", "p95"}
    assert set(summary["greedy_heldout"]) == {"before", "after"}
    assert set(summary["verdicts"]) <= {"success", "model_failure"}
    names = {path.name for path in lab.run.iterdir()}
    assert {"config.yaml", "ledger.sqlite", "metrics.jsonl", "logs", "checkpoints", "weights", "summary.md"} < names
    lines = [json.loads(line) for line in (lab.run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["event"] == "step"] == [1, 2, 3, 4]


def test_overlapped_run_trains_while_it_generates_and_keeps_the_bound_on_lag(lab: Lab) -> None:
    in_place = "publish.in_flight=in_place"
    job = lab.launch("schedule.swing=none", "schedule.max_policy_lag=2", "inference.num_engines=2", in_place)
    assert job.end() == 0, (lab.folder / "stderr.log").read_text()
    lab.check_each_group_trained_at_most_once(4)
    assert lab.summary()["policy_lag"]["max"] <= 2
    lines = [json.loads(line) for line in (lab.run / "metrics.jsonl").read_text().splitlines()]
    publications = [line for line in lines if line["event"] == "published"]
    assert [(line["version"], line["engines"]) for line in publications] == [(step, 2) for step in (1, 2, 3, 4)]
    for line in publications:
        assert line["probe_difference"] < TOLERANCES[Dtype.float32]
        assert 0 < line["downtime_s"] <= line["latency_s"]
        assert line["received_bytes"] > 0


def test_hybrid_run_lends_its_swing_engine_and_accounts_for_every_gpu(lab: Lab) -> None:
    job = lab.launch("schedule.swing=1", "inference.num_engines=2")
    assert job.end() == 0, (lab.folder / "stderr.log").read_text()
    lab.check_each_group_trained_at_most_once(4)
    reader = LedgerReader.open(lab.run / "ledger.sqlite")
    spent: Counter[tuple[str, str]] = Counter()
    for row in read_gpu_time(reader):
        spent[row.lane, row.use] += row.spent_us
    decisions = [row for row in read_balance(reader) if row.choice in ("return", "stay")]
    reader.close()
    assert spent["engine-0", "train"] > 0 and spent["engine-0", "switch"] > 0
    assert spent["engine-1", "train"] == 0 and spent["engine-1", "generate"] > 0
    lanes = [sum(us for (lane, _), us in spent.items() if lane == name) for name in ("engine-0", "engine-1")]
    assert lanes[0] == lanes[1]
    assert {row.step for row in decisions if row.realised_s is not None} == {2, 3, 4}


def test_swing_engine_killed_while_it_is_lent_comes_back_and_serves(lab: Lab) -> None:
    job = lab.launch("schedule.swing=1", "inference.num_engines=2")
    job.wait_for_phase("training", "step 2")
    for pid in job.pids("agentrl.inference.embedded", "engine-0"):
        os.kill(pid, signal.SIGKILL)
    assert job.end() == 0, (lab.folder / "stderr.log").read_text()
    assert any(e["event"] == "process" and (e["role"], e["state"]) == ("engine-0", "down") for e in job.events)
    lab.check_each_group_trained_at_most_once(4)
    assert set(lab.summary()["verdicts"]) <= {"success", "model_failure"}


def test_killed_trainer_repeats_its_step_from_the_checkpoint(lab: Lab) -> None:
    job = lab.launch()
    job.wait_for_phase("training", "step 2")
    for pid in job.pids("-m agentrl.trainer")[-1:]:
        os.kill(pid, signal.SIGKILL)
    assert job.end() == 0, (lab.folder / "stderr.log").read_text()
    assert any(e["event"] == "process" and (e["role"], e["state"]) == ("trainer", "down") for e in job.events)
    lab.check_each_group_trained_at_most_once(4)


def test_killed_engine_comes_back_and_its_turns_are_sampled_again(lab: Lab) -> None:
    job = lab.launch()
    job.wait_for_step(1)
    job.wait_for(lambda e: e["event"] == "episode")
    for pid in job.pids("agentrl.inference.embedded"):
        os.kill(pid, signal.SIGKILL)
    assert job.end() == 0, (lab.folder / "stderr.log").read_text()
    assert any(e["event"] == "process" and (e["role"], e["state"]) == ("engine-0", "down") for e in job.events)
    lab.check_each_group_trained_at_most_once(4)
    assert "uncertain" not in lab.summary()["verdicts"]


def test_killed_controller_takes_everything_along_and_its_run_is_resumed(lab: Lab) -> None:
    job = lab.launch()
    job.wait_for_phase("training", "step 2")
    pids = [pid for pid, _ in lab.left_over()]
    job.signal(signal.SIGKILL)
    job.end()
    wait_gone(pids)
    assert lab.command("ps").stdout.count("lost its controller") == 1
    resumed = lab.resume()
    assert resumed.end() == 0, (lab.folder / "stderr.log").read_text()
    lab.check_each_group_trained_at_most_once(4)
    assert lab.summary()["steps"] == 4


def test_ctrl_c_stops_cleanly_and_the_run_goes_on_later(lab: Lab) -> None:
    job = lab.launch()
    job.wait_for_step(1)
    job.signal(signal.SIGINT)
    assert job.end() == 130
    assert lab.left_over() == []
    assert lab.summary()["status"] == "stopped"
    assert lab.resume().end() == 0
    lab.check_each_group_trained_at_most_once(4)


def test_second_ctrl_c_ends_at_once_and_leaves_nothing(lab: Lab) -> None:
    job = lab.launch()
    job.wait_for_step(1)
    pids = [pid for pid, _ in lab.left_over()]
    job.signal(signal.SIGINT)
    job.wait_for(lambda e: e["event"] == "phase" and e["phase"] == "stopping")
    job.signal(signal.SIGINT)
    assert job.end() == 130
    wait_gone(pids)
    assert " stopped " in lab.command("ps").stdout


def test_stop_from_elsewhere_stops_and_a_second_controller_is_refused(lab: Lab) -> None:
    job = lab.launch()
    job.wait_for_step(1)
    second = lab.command("resume", "job")
    assert second.returncode == 2
    assert "already controlled" in second.stderr
    status = json.loads(lab.command("status", "job", "--json").stdout)
    assert status["status"] == "running"
    assert {"engine-0", "trainer"} <= set(status["processes"])
    assert lab.command("stop", "job").returncode == 0
    assert job.end() == 130
    assert "nothing was left over" in lab.command("stop", "job").stdout


def test_run_whose_output_nobody_reads_any_more_goes_on(lab: Lab) -> None:
    job = lab.launch("schedule.steps=1")
    job.wait_for(lambda e: e["event"] == "run_started")
    assert job.process.stdout is not None
    job.process.stdout.close()
    assert job.process.wait() == 0, (lab.folder / "stderr.log").read_text()
    assert lab.summary()["status"] == "finished"
    assert "finished" in (lab.run / "logs" / "controller.log").read_text()


def wait_gone(pids: list[int]) -> None:
    """Until the kernel has ended processes that were told to die."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            ended, _, _ = select.select([descriptor], [], [], 30)
            assert ended, f"process {pid} still lives"
        finally:
            os.close(descriptor)
