"""What a run says about its sandboxes, in words: the warm pool's figures, and whether launching pauses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def sandboxes_text(figures: Mapping[str, Any]) -> str:
    """Fields of `SandboxesUsed`; - before any sandbox was asked for."""
    if figures.get("hit_rate") is None:
        return "-"
    text = f"{figures['hit_rate']:.0%} warm, had in {_duration(figures['acquire_p50_s'])} (p50)"
    text += f", {_duration(figures['acquire_p95_s'])} (p95)"
    if figures["waste"] is not None:
        text += f"; {figures['waste']:.0%} of {figures['started']} never used"
    listed = [f"{figures[name]} {name}" for name in ("failed", "dead", "hedged", "abandoned") if figures[name]]
    return "; ".join([text, *listed])


def launching_text(paused_s: float | None, reason: str) -> str:
    """Fields of `LaunchingChanged`."""
    if paused_s is None:
        return "launching goes on as before"
    return f"launching pauses for {paused_s:g} s, then a few episodes are tried: {reason}"


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
