"""What a person sees of a run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from agentrl.bounds import Seconds


class LiveView(Enum):
    """What `launch` and `resume` print."""

    auto = "auto"
    """rich on a terminal, else plain."""
    rich = "rich"
    """A view that redraws in place."""
    plain = "plain"
    """One line per event worth a line."""
    json = "json"
    """One JSON object per line, for machines."""


@dataclass(frozen=True, kw_only=True)
class ObserveConfig:
    live: LiveView = LiveView.auto
    """What is printed while the run goes on."""

    refresh_s: Seconds = 0.5
    """Between two redraws of the rich view."""
