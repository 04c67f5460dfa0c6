"""The run as plain lines: for logs, CI and everything that is not a terminal."""

from __future__ import annotations

import os
from typing import TextIO

from agentrl.observe.events import (
    BalanceDecided,
    BatchReady,
    Evaluated,
    Event,
    GroupClosed,
    LaunchingChanged,
    Phase,
    ProcessChanged,
    Published,
    RunEnded,
    RunStarted,
    StepApplied,
    Warned,
)
from agentrl.observe.sandboxes import launching_text


def write_line(out: TextIO, line: str) -> None:
    """Print a line. When nobody can read it any more (a closed pipe, a full device) the run goes on without."""
    try:
        print(line, file=out, flush=True)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, out.fileno())
        os.close(nowhere)


class PlainLines:
    """Prints one line for each event that is worth one."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def emit(self, event: Event) -> None:
        line = describe(event)
        if line is not None:
            write_line(self._out, line)


def describe(event: Event) -> str | None:
    """An event in words; None for the ones that come too often or say nothing new."""
    match event:
        case RunStarted():
            start = f"resumed after step {event.resumed_at}" if event.resumed_at else "new"
            return f"run {event.name} ({start}): {event.steps} steps, seed {event.seed}, in {event.directory}"
        case Phase(phase="preparing" | "starting" | "evaluating" | "stopping"):
            return f"{event.phase} {event.detail}".rstrip()
        case ProcessChanged():
            return f"{event.role}: {event.state}" + (f" ({event.detail})" if event.detail else "")
        case GroupClosed(ready=False, reason=str(reason)) if reason != "zero_variance":
            return f"group {event.group} ({event.task}) dropped: {reason}"
        case BatchReady():
            return (
                f"step {event.step}: batch of {event.num_groups} groups, {event.num_trajectories} trajectories, "
                f"in {event.time_to_batch_s:.1f} s; mean sampled reward {event.reward_sampled:.3f}"
            )
        case StepApplied():
            shown = ("loss", "grad_norm", "entropy", "mismatch_max", "lag_max")
            metrics = "  ".join(f"{key} {event.metrics[key]:.3g}" for key in shown if key in event.metrics)
            return f"step {event.step}: trained in {event.step_s:.1f} s  {metrics}".rstrip()
        case Published():
            return f"version {event.version}: live on {event.engines} engines after {event.latency_s:.2f} s"
        case BalanceDecided(gain_s=float(gain_s), predicted_s=float(predicted_s)):
            how = f"training in {predicted_s:.1f} s, {gain_s:.1f} s before the alternative"
            return f"step {event.step}: swing engines {event.choice}: {event.reason}; {how}"
        case Evaluated():
            tasks = f"{event.num_tasks} held-out tasks"
            return f"evaluation {event.label} (version {event.version}): greedy success {event.success:.3f} on {tasks}"
        case _:
            return _describe_rare(event)


def _describe_rare(event: Event) -> str | None:
    match event:
        case LaunchingChanged():
            return launching_text(event.paused_s, event.reason)
        case Warned():
            return f"warning: {event.message}"
        case RunEnded():
            return f"{event.status}: {event.detail}" if event.detail else event.status
        case _:
            return None
