"""What a person sees of a run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from agentrl.bounds import CountOrZero, Seconds


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

    keep_trajectories: CountOrZero = 0
    """Steps whose tokens and log-probs stay in the ledger after they were trained on; 0 keeps all. 256 episodes of
    40,000 tokens are 130 MB a step. Verdicts, rewards and turns always stay."""
