"""GPU time and the balance as figures of a report, from the ledger's rows. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from agentrl.controller.balance.gpu_time import USEFUL
from agentrl.ledger.accounts import BalanceRow, GpuTimeRow
from agentrl.observe.state import sparkline

NUM_LAST = 3
"""Decisions that are shown one by one."""
NUM_BINS = 10


def gpu_figures(rows: Sequence[GpuTimeRow]) -> dict[str, Any]:
    """GPU seconds in all and by use, shares of the whole, the same by lane, and GPU hours lost by reason."""
    spent: Counter[str] = Counter()
    lanes: dict[str, Counter[str]] = {}
    for row in rows:
        gpu_us = row.num_gpus * row.spent_us
        spent[row.use] += gpu_us
        lanes.setdefault(row.lane, Counter())[row.use] += gpu_us
    return {
        "gpu_s": round(spent.total() / 1e6, 3),
        "share": _shares(spent),
        "lanes": {lane: _shares(uses) for lane, uses in sorted(lanes.items())},
        "lost_gpu_hours": {use: round(us / 3.6e9, 4) for use, us in spent.most_common() if use not in USEFUL},
    }


def balance_figures(rows: Sequence[BalanceRow]) -> dict[str, Any]:
    """How often the balance chose what, how far off its predictions were, and the last decisions in full."""
    known = [(row.predicted_s, row.realised_s) for row in rows if row.predicted_s and row.realised_s]
    return {
        "choices": dict(sorted(Counter(row.choice for row in rows).items())),
        "prediction_error": _round(statistics.mean(abs(r - p) / r for p, r in known)) if known else None,
        "realised_per_predicted": _round(sum(r for _, r in known) / sum(p for p, _ in known)) if known else None,
        "last": [_decision(row) for row in rows[-NUM_LAST:]],
    }


def histogram(values: Sequence[float]) -> dict[str, Any]:
    """Counts of values in bins of equal width from the smallest to the largest; no bins without values."""
    if not values:
        return {"from": None, "to": None, "counts": []}
    low, high = min(values), max(values)
    counts = [0] * NUM_BINS
    for value in values:
        counts[min(int((value - low) / ((high - low) or 1.0) * NUM_BINS), NUM_BINS - 1)] += 1
    return {"from": round(low, 3), "to": round(high, 3), "counts": counts}


def lines(gpu: dict[str, Any], balance: dict[str, Any], times: dict[str, Any]) -> list[str]:
    """The figures as Markdown list items; none for what there is nothing of."""
    said = []
    if times["counts"]:
        bars = sparkline(times["counts"], high=max(times["counts"]))
        said.append(f"- time to batch from {times['from']} s to {times['to']} s, histogram: {bars}")
    if gpu["gpu_s"]:
        said.append(f"- GPU time: {share_text(gpu['share'])}")
        lost = ", ".join(f"{hours:g} h to {use}" for use, hours in gpu["lost_gpu_hours"].items() if hours) or "none"
        said.append(f"- GPU hours lost: {lost}")
    if balance["choices"]:
        said += [f"- balance: {_counted(balance)}", *(f"  - {_decision_text(row)}" for row in balance["last"])]
    return said


def share_text(share: dict[str, float]) -> str:
    """Shares in words, the largest first; without those that round to nothing."""
    ordered = sorted(share.items(), key=lambda item: -item[1])
    return ", ".join(f"{use} {100 * value:.1f} %" for use, value in ordered if value >= 0.0005) or "none yet"


def _shares(spent: Counter[str]) -> dict[str, float]:
    total = spent.total() or 1
    return {use: us / total for use, us in sorted(spent.items())}


def _decision(row: BalanceRow) -> dict[str, Any]:
    gain_s = None
    realised_gain_s = None
    if row.alternative_s is not None and row.predicted_s is not None:
        gain_s = row.alternative_s - row.predicted_s
        realised_gain_s = None if row.realised_s is None else row.alternative_s - row.realised_s
    return {
        "step": row.step,
        "choice": row.choice,
        "reason": row.reason,
        "predicted_s": _round(row.predicted_s),
        "realised_s": _round(row.realised_s),
        "predicted_gain_s": _round(gain_s),
        "realised_gain_s": _round(realised_gain_s),
        "inputs": row.inputs,
    }


def _counted(balance: dict[str, Any]) -> str:
    text = ", ".join(f"{choice} {count}" for choice, count in balance["choices"].items())
    if balance["prediction_error"] is None:
        return text
    return f"{text}; time to the next training off by {100 * balance['prediction_error']:.0f} % on average"


def _decision_text(row: dict[str, Any]) -> str:
    text = f"for step {row['step']}: {row['choice']}, {row['reason']}"
    for key, word in (("predicted", "predicted"), ("realised", "came to")):
        if row[f"{key}_s"] is not None:
            gain = row[f"{key}_gain_s"]
            text += f"; {word} {row[f'{key}_s']:g} s" + ("" if gain is None else f" (gain {gain:g} s)")
    return text


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
