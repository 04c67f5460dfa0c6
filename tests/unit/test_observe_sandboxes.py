"""What is said of sandboxes and of launching: in words, in the live view, in status and summary."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from agentrl.controller.lifecycle.summary import as_text, summarise
from agentrl.ledger.ledger import Ledger
from agentrl.ledger.reader import LedgerReader
from agentrl.observe.events import LaunchingChanged, SandboxesUsed
from agentrl.observe.live import render
from agentrl.observe.plain import describe
from agentrl.observe.sandboxes import sandboxes_text
from agentrl.observe.state import RunState

USED = SandboxesUsed(
    hits=90,
    misses=10,
    started=110,
    failed=0,
    dead=1,
    hedged=2,
    abandoned=0,
    unused=11,
    hit_rate=0.9,
    waste=0.1,
    acquire_p50_s=0.004,
    acquire_p95_s=1.25,
    warm=3,
)
SAID = "90% warm, had in 4 ms (p50), 1.2 s (p95); 10% of 110 never used; 1 dead; 2 hedged"
PAUSED = LaunchingChanged(paused_s=30.0, reason="75% of the last 64 episodes are infra_failure")


def test_figures_of_the_warm_pool_are_one_line() -> None:
    assert sandboxes_text(vars(USED)) == SAID
    assert sandboxes_text({}) == "-"
    assert sandboxes_text(vars(replace(USED, hit_rate=None))) == "-"


def test_a_pause_is_a_line_and_stands_in_the_view_until_it_is_over() -> None:
    assert describe(PAUSED) == f"launching pauses for 30 s, then a few episodes are tried: {PAUSED.reason}"
    state = RunState()
    for event in (USED, PAUSED):
        state.apply(event)
    out = io.StringIO()
    Console(file=out, width=160).print(render(state))
    assert SAID in out.getvalue() and "launching pauses for 30 s" in out.getvalue()
    over = LaunchingChanged(paused_s=None, reason="")
    state.apply(over)
    assert describe(over) == "launching goes on as before"
    assert state.launching == ""


def test_status_and_summary_say_both(tmp_path: Path) -> None:
    ledger = Ledger.take(tmp_path / "ledger.sqlite")
    ledger.set_meta("sandboxes", json.dumps(asdict(USED)))
    ledger.set_meta("launching", json.dumps(asdict(PAUSED)))
    ledger.set_meta("status", "running")
    summary = summarise(LedgerReader.of(ledger), name="job", seed=0)
    assert (summary["sandboxes"]["hit_rate"], summary["launching"]["paused_s"]) == (0.9, 30.0)
    text = as_text(summary, "/runs/job")
    assert f"- sandboxes: {SAID}" in text and "- launching pauses for 30 s" in text
    assert "pauses" not in as_text(summary | {"status": "finished"}, "/runs/job")
