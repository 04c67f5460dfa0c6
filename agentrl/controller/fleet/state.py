"""What an engine is doing."""

from __future__ import annotations

from enum import StrEnum


class EngineState(StrEnum):
    """What an engine is doing, as far as the fleet can see."""

    DOWN = "down"
    BUSY = "busy"
    """It has requests."""
    FREE = "free"
    """It has none, and would take one."""
    HELD = "held"
    """Weights are being changed."""
    SWITCHING = "switching"
    """On its way to the trainer, or back."""
    LENT = "lent"
