"""Members that a group does not need are cancelled in a whole run, with real sandboxes, and leave nothing behind."""

from __future__ import annotations

from collections import Counter

from agentrl.ledger.reader import LedgerReader
from tests.e2e.job import Lab


def test_surplus_members_are_cancelled_and_their_sandboxes_go(lab: Lab) -> None:
    job = lab.launch("schedule.extra_members=2", "sandbox.max_sandboxes=16")
    assert job.end() == 0, (lab.folder / "stderr.log").read_text()
    lab.check_each_group_trained_at_most_once(4)
    reader = LedgerReader.open(lab.run / "ledger.sqlite")
    rows = reader.episodes()
    batched = {group.id for group in reader.groups(["batched"])}
    reader.close()
    usable = Counter(row.group for row in rows if row.reward is not None)
    assert len({usable[group] for group in batched}) == 1
    cancelled = [row for row in rows if row.cause == "surplus"]
    assert cancelled
    assert all(row.verdict is None and row.num_turns is not None for row in cancelled)
    summary = lab.summary()
    assert set(summary["verdicts"]) <= {"success", "model_failure"}
    assert summary["selection_bias"]["num_cancelled"] == len(cancelled)
