"""Events as lines of JSON: `metrics.jsonl` in the run directory, and `--json` on stdout."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from agentrl.clock import wall
from agentrl.observe.events import (
    BalanceDecided,
    BalanceRealised,
    EnginesTold,
    Evaluated,
    Event,
    GpuTimeSpent,
    Published,
    SandboxesUsed,
    StepApplied,
)
from agentrl.observe.plain import write_line


def event_json(event: Event) -> str:
    """One event as one line: `event` is its kind, `time` is seconds since the Unix epoch."""
    return json.dumps({"event": event.kind, "time": round(wall(), 3), **asdict(event)})


_CURVES = (
    StepApplied | Published | Evaluated | GpuTimeSpent | SandboxesUsed | EnginesTold | BalanceDecided | BalanceRealised
)


class MetricsFile:
    """Appends what makes curves: steps, publications, evaluations, GPU time, sandboxes, the balance's predictions."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def emit(self, event: Event) -> None:
        if isinstance(event, _CURVES):
            self._file.write(event_json(event) + "\n")
            self._file.flush()

    def close(self) -> None:
        self._file.close()


class JsonLines:
    """Prints every event."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def emit(self, event: Event) -> None:
        write_line(self._out, event_json(event))
