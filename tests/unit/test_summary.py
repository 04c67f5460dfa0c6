"""What a run came to, from its ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.controller.lifecycle.summary import as_text, divergence_bands, left_out_shares, quantile, summarise
from agentrl.ledger.accounts import Accounts, BalanceRow, GpuTimeRow
from agentrl.ledger.ledger import Ledger
from agentrl.ledger.reader import LedgerReader
from agentrl.ledger.rows import EvaluationRow, StepRow


def test_summary_of_a_run(tmp_path: Path) -> None:
    ledger = Ledger.take(tmp_path / "ledger.sqlite")
    for step in range(1, 8):
        ledger.assign_batch(StepRow(step, f"b{step}", 0.0, float(step), step / 10), [], [])
        ledger.apply_step(step, weights_path="/w", metrics={"lag_p50": 0.0, "lag_max": float(step % 3)})
    ledger.assign_batch(StepRow(8, "b8", 0.0, 99.0, 1.0), [], [])
    ledger.record_evaluations([EvaluationRow("before", 0, f"e{i}", "t", "success", i % 2) for i in range(4)])
    accounts = Accounts(ledger)
    for lane, use, spent_us in (("engine-0", "generate", 6_000_000), ("engine-0", "train", 2_000_000)):
        row = GpuTimeRow(lane=lane, step=1, use=use, num_gpus=1, began_at=0.0, spent_us=spent_us)
        accounts.add_gpu_time([row, row])
    trainer = GpuTimeRow(lane="trainer", step=1, use="idle", num_gpus=3, began_at=0.0, spent_us=16_000_000)
    accounts.add_gpu_time([trainer])
    decision = BalanceRow(
        step=2, decided_at=0.0, choice="return", reason="r", predicted_s=8.0, alternative_s=20.0, inputs={"a": 1}
    )
    accounts.realise(accounts.record_decision(decision), 10.0)
    ledger.set_meta("status", "stopped")
    ledger.set_meta("wall_s", "12.34")
    summary = summarise(LedgerReader.of(ledger), name="job", seed=3)
    assert summary["steps"] == 7
    assert (summary["reward_first"], summary["reward_last"]) == (0.2, 0.6)
    assert summary["time_to_batch_s"] == {"mean": 4.0, "p50": 4.0, "p95": 7.0}
    assert summary["policy_lag"] == {"p50": 0.0, "max": 2.0}
    assert summary["greedy_heldout"] == {"before": 0.5}
    assert summary["time_to_batch_histogram"] == {"from": 1.0, "to": 7.0, "counts": [1, 1, 0, 1, 0, 1, 1, 0, 1, 1]}
    assert summary["gpu_time"]["gpu_s"] == 64.0
    assert summary["gpu_time"]["share"] == {"generate": 0.1875, "idle": 0.75, "train": 0.0625}
    assert summary["gpu_time"]["lanes"]["engine-0"] == {"generate": 0.75, "train": 0.25}
    assert summary["gpu_time"]["lost_gpu_hours"] == {"idle": 0.0133}
    assert (summary["balance"]["choices"], summary["balance"]["prediction_error"]) == ({"return": 1}, 0.2)
    (last,) = summary["balance"]["last"]
    assert (last["predicted_gain_s"], last["realised_gain_s"], last["inputs"]) == (12.0, 10.0, {"a": 1})
    assert (summary["status"], summary["seed"], summary["wall_s"]) == ("stopped", 3, 12.3)
    text = as_text(summary, "/runs/job")
    assert "0.2 (first 3 steps) -> 0.6 (last 3)" in text
    assert "/runs/job" in text
    assert "GPU time: idle 75.0 %, generate 18.8 %, train 6.2 %" in text
    assert "0.0133 h to idle" in text
    assert "for step 2: return, r; predicted 8 s (gain 12 s); came to 10 s (gain 10 s)" in text


def test_summary_of_a_run_without_a_step_has_no_invented_figures(tmp_path: Path) -> None:
    summary = summarise(LedgerReader.of(Ledger.take(tmp_path / "ledger.sqlite")), name="job", seed=0)
    assert (summary["steps"], summary["reward_first"], summary["reward_last"]) == (0, None, None)
    assert summary["time_to_batch_s"] == {"mean": None, "p50": None, "p95": None}
    assert summary["verdicts"] == {}
    assert as_text(summary, "/runs/job")


@pytest.mark.parametrize(("share", "value"), [(0.0, 1.0), (0.5, 2.0), (0.95, 4.0), (1.0, 4.0)])
def test_quantile_is_a_value_that_was_seen(share: float, value: float) -> None:
    assert quantile([4.0, 1.0, 3.0, 2.0], share) == value


def test_bands_are_added_up_and_what_was_left_out_is_told_by_family() -> None:
    metrics: list[dict[str, float]] = [
        {"groups_keep": 7.0, "groups_drop": 1.0, "left_out_share/boxes": 0.2, "left_out_share/shell": 0.0},
        {"groups_keep": 8.0, "left_out_share/boxes": 0.1},
    ]
    steps = [StepRow(n, f"b{n}", 0.0, 1.0, 0.5, metrics=values) for n, values in enumerate(metrics)]
    assert divergence_bands(steps) == {"keep": 15, "down_weight": 0, "truncate": 0, "drop": 1}
    assert left_out_shares(steps) == {"boxes": 0.15, "shell": 0.0}
    assert divergence_bands([StepRow(1, "b", 0.0, 1.0, 0.5)]) == {}
