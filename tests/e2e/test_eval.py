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


def test_a_live_run_is_evaluated_beside_itself_and_the_same_again_afterwards(lab: Lab) -> None:
    job = lab.launch("publish.keep_versions=4")
    job.wait_for_step(3)
    beside = evaluate(lab, "job", "--version", "2", "-n", "2")
    assert (beside["version"], beside["figures"]["num_samples"]) == (2, 4)
    assert beside["figures"]["num_tokens"] > 0
    assert beside["figures"]["probe_difference"] < 1e-4
    assert job.end() == 0
    lab.check_each_group_trained_at_most_once(4)
    assert not list((lab.run / "work").glob("eval-*"))

    again = evaluate(lab, str(lab.run / "weights" / "v000002"), "-n", "2")
    assert (again["evaluation"], again["figures"]) == (2, beside["figures"])
    records = json.loads(lab.command("eval", "job", "--history", "--json").stdout)
    assert [record["comparable"] for record in records] == [True, True]
