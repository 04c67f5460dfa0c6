"""What a person sees: the fold over events, plain lines, the drawn view, lines of JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from agentrl.observe.events import (
    BalanceDecided,
    BatchReady,
    EpisodeEnded,
    Evaluated,
    Event,
    GpuTimeSpent,
    GroupClosed,
    Phase,
    ProcessChanged,
    Published,
    RunEnded,
    RunStarted,
    StepApplied,
    Warned,
)
from agentrl.observe.files import JsonLines, MetricsFile
from agentrl.observe.live import TerminalView, render
from agentrl.observe.plain import PlainLines
from agentrl.observe.state import RunState, sparkline

STEP = StepApplied(step=3, reward_sampled=0.5, time_to_batch_s=4.0, step_s=1.5, metrics={"loss": 0.25})
STORY: list[Event] = [
    RunStarted(name="a [red] run", directory="/runs/[/tmp]", seed=0, steps=5, groups_per_step=2, resumed_at=2),
    Phase(phase="collecting", detail="step 3"),
    ProcessChanged(role="engine-0", state="up"),
    EpisodeEnded(
        episode="e", task="t", verdict="success", cause="rewarded", reward=1.0, num_turns=2, num_tokens=9, live=7
    ),
    GroupClosed(group="g0", task="t", ready=True, reason=None, num_ready=2),
    GroupClosed(group="g1", task="t", ready=False, reason="stale: version 1", num_ready=2),
    BatchReady(step=3, time_to_batch_s=4.0, reward_sampled=0.5, num_groups=2, num_trajectories=8),
    STEP,
    Published(version=3, method="storage", latency_s=0.1, engines=1),
    Evaluated(label="before", version=0, num_tasks=4, success=0.25),
    Warned(message="look at [this]"),
    BalanceDecided(step=4, choice="return", reason="sooner", predicted_s=30.0, gain_s=12.5),
    GpuTimeSpent(step=3, gpu_s={"generate": 6.0, "train": 3.0, "idle": 1.0}),
]


def test_state_follows_the_events() -> None:
    state = RunState()
    for event in STORY:
        state.apply(event)
    assert (state.step, state.steps, state.phase) == (3, 5, "collecting")
    assert (state.live, state.num_ready) == (7, 0)
    assert state.rewards == [0.5]
    assert state.verdicts == {"success": 1}
    assert state.drops == {"stale": 1}
    assert state.evaluations == {"before": 0.25}
    assert state.processes == {"engine-0": "up"}


def test_view_shows_what_matters_and_prints_user_text_as_it_is() -> None:
    state = RunState()
    for event in STORY:
        state.apply(event)
    console = Console(file=io.StringIO(), width=100, record=True)
    console.print(render(state))
    text = console.export_text()
    for shown in (
        "a [red] run",
        "/runs/[/tmp]",
        "3 / 5",
        "collecting step 3",
        "7 live",
        "success 1",
        "4.0 s",
        "loss 0.25",
        "generate 60 %  train 30 %  idle 10 %",
        "return: sooner",
    ):
        assert shown in text


def test_view_of_a_run_that_has_just_begun_can_be_drawn() -> None:
    console = Console(file=io.StringIO(), width=100, record=True)
    console.print(render(RunState()))
    assert "preparing" in console.export_text()


def test_view_closes_when_the_run_ends_and_keeps_warnings() -> None:
    out = io.StringIO()
    view = TerminalView(Console(file=out, force_terminal=True, width=100), refresh_s=10.0)
    for event in [*STORY, RunEnded(status="finished", detail="")]:
        view.emit(event)
    assert "look at [this]" in out.getvalue()


def test_plain_lines_tell_the_story() -> None:
    out = io.StringIO()
    lines = PlainLines(out)
    for event in [*STORY, RunEnded(status="failed", detail="no disk")]:
        lines.emit(event)
    assert out.getvalue().splitlines() == [
        "run a [red] run (resumed after step 2): 5 steps, seed 0, in /runs/[/tmp]",
        "engine-0: up",
        "group g1 (t) dropped: stale: version 1",
        "step 3: batch of 2 groups, 8 trajectories, in 4.0 s; mean sampled reward 0.500",
        "step 3: trained in 1.5 s  loss 0.25",
        "version 3: live on 1 engines after 0.10 s",
        "evaluation before (version 0): greedy success 0.250 on 4 held-out tasks",
        "warning: look at [this]",
        "step 4: swing engines return: sooner; training in 30.0 s, 12.5 s before the alternative",
        "failed: no disk",
    ]


def test_every_event_is_one_line_of_json() -> None:
    out = io.StringIO()
    lines = JsonLines(out)
    for event in STORY:
        lines.emit(event)
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [row["event"] for row in rows] == [event.kind for event in STORY]
    assert rows[7]["metrics"] == {"loss": 0.25}


def test_metrics_file_grows_over_resumptions_and_holds_only_curves(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for _ in range(2):
        metrics = MetricsFile(path)
        for event in STORY:
            metrics.emit(event)
        metrics.close()
    kinds = [json.loads(line)["event"] for line in path.read_text().splitlines()]
    assert kinds == ["step", "published", "evaluation", "balance", "gpu_time"] * 2


@pytest.mark.parametrize(
    ("values", "line"), [([], ""), ([0.0, 0.5, 1.0], "▁▅█"), ([-1.0, 2.0], "▁█"), ([0.1] * 99, "▁" * 60)]
)
def test_sparkline_keeps_its_bounds(values: list[float], line: str) -> None:
    assert sparkline(values) == line
