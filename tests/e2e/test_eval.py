"""`agentrl eval` on real engines and sandboxes: beside a live run, with equal seeds, and what can be compared."""

from __future__ import annotations

import json
from typing import Any

from tests.e2e.job import Lab


def evaluate(lab: Lab, *words: str) -> dict[str, Any]:
    done = lab.command("eval", *words, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_live_run_is_evaluated_beside_itself_and_goes_on(lab: Lab) -> None:
    job = lab.launch("schedule.steps=6", "publish.keep_versions=1")
    job.wait_for_step(2)
    beside = evaluate(lab, "job", "-n", "2", "inference.dtype=bfloat16")
    assert beside["version"] >= 1
    assert beside["figures"]["num_samples"] == 4
    assert beside["figures"]["num_tokens"] > 0
    assert 1e-6 < beside["figures"]["probe_difference"] < 0.05
    assert job.end() == 0
    lab.check_each_group_trained_at_most_once(6)
    assert not list((lab.run / "work").glob("eval-*"))

    ours = evaluate(lab, "job", "-n", "2", "--seed", "1")
    assert (ours["version"], ours["figures"]["probe_difference"] < 1e-4) == (6, True)
    again = evaluate(lab, str(lab.run / "weights" / "v000006"), "-n", "2", "--seed", "1")
    assert again["figures"]["pass_at_k"] == ours["figures"]["pass_at_k"]
    assert again["figures"]["num_tokens"] == ours["figures"]["num_tokens"]

    records = json.loads(lab.command("eval", "job", "--history", "--json").stdout)
    assert [record["comparable"] for record in records] == [False, True, True]
    assert records[0]["differences"] == ["engine.dtype bfloat16 -> float32"]
