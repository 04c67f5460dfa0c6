"""What a process of a run has printed."""

from __future__ import annotations

from collections import deque
from pathlib import Path


def log_tail(log: Path, num_lines: int = 5) -> str:
    """The last lines of a process's output, as one line."""
    try:
        with log.open(encoding="utf-8", errors="replace") as lines:
            tail = deque((line.strip() for line in lines if line.strip()), maxlen=num_lines)
    except FileNotFoundError:
        return "no output"
    return " | ".join(tail) or "no output"
