"""What a run came to, computed from its ledger: `summary.json`, `summary.md`, and the last thing that is printed."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from agentrl.controller.balance import gpu_report
from agentrl.controller.scheduling.selection import selection_bias
from agentrl.ledger.accounts import PublicationRow, read_balance, read_gpu_time, read_publications
from agentrl.ledger.reader import LedgerReader
from agentrl.ledger.rows import StepRow
from agentrl.observe.sandboxes import launching_text, sandboxes_text
from agentrl.observe.state import sparkline

_BANDS = ("keep", "down_weight", "truncate", "drop")
_LEFT_OUT = "left_out_share/"


def summarise(reader: LedgerReader, *, name: str, seed: int) -> dict[str, Any]:
    """Figures of a run so far. Rewards are means over everything sampled for a step, trained on or not."""
    steps = [step for step in reader.steps() if step.applied_at is not None]
    rewards = [step.reward_sampled for step in steps]
    times = [step.time_to_batch_s for step in steps]
    evaluations: dict[str, list[float]] = {}
    for row in sorted(reader.evaluations(), key=lambda row: row.version):
        if row.reward is not None:
            evaluations.setdefault(row.label, []).append(row.reward)
    return {
        "name": name,
        "status": reader.meta("status"),
        "seed": seed,
        "steps": len(steps),
        "reward_first": _mean(rewards[:3]),
        "reward_last": _mean(rewards[-3:]),
        "rewards": [round(reward, 4) for reward in rewards],
        "wall_s": round(float(reader.meta("wall_s") or 0.0), 1),
        "time_to_batch_s": {"mean": _mean(times), "p50": quantile(times, 0.5), "p95": quantile(times, 0.95)},
        "time_to_batch_histogram": gpu_report.histogram(times),
        "gpu_time": gpu_report.gpu_figures(read_gpu_time(reader)),
        "balance": gpu_report.balance_figures(read_balance(reader)),
        "publication": _publication(read_publications(reader)),
        "verdicts": reader.verdict_counts(),
        "sequences": reader.sequence_counts(),
        "policy_lag": {"p50": _lag(steps, "lag_p50", statistics.median), "max": _lag(steps, "lag_max", max)},
        "groups_dropped": reader.drop_counts(),
        "divergence_bands": divergence_bands(steps),
        "left_out_share": left_out_shares(steps),
        "sandboxes": json.loads(reader.meta("sandboxes") or "null"),
        "launching": json.loads(reader.meta("launching") or "null"),
        "selection_bias": _bias(reader),
        "greedy_heldout": {label: _mean(values) for label, values in evaluations.items()},
    }


def _publication(rows: Sequence[PublicationRow]) -> dict[str, Any] | None:
    if not rows:
        return None
    latencies = [row.latency_s for row in rows]
    return {
        "method": rows[-1].method,
        "latency_s": {"mean": _mean(latencies), "p50": quantile(latencies, 0.5), "p95": quantile(latencies, 0.95)},
        "downtime_s": _mean([row.downtime_s for row in rows]),
        "received_bytes": int(statistics.mean(row.received_bytes for row in rows)),
    }


def divergence_bands(steps: Sequence[StepRow]) -> dict[str, int]:
    """Groups of all steps by what was done to them; empty where no band is set."""
    found = {band: sum(int(step.metrics.get(f"groups_{band}", 0)) for step in steps) for band in _BANDS}
    return found if any(found.values()) else {}


def left_out_shares(steps: Sequence[StepRow]) -> dict[str, float]:
    """By task family: mean share of its tokens, over the steps that had any, of which nothing was learned."""
    shares: dict[str, list[float]] = {}
    for step in steps:
        for name, value in step.metrics.items():
            if name.startswith(_LEFT_OUT):
                shares.setdefault(name.removeprefix(_LEFT_OUT), []).append(value)
    return {family: round(statistics.fmean(values), 4) for family, values in sorted(shares.items())}


def _bias(reader: LedgerReader) -> dict[str, float | int] | None:
    bias = selection_bias(reader.episodes(), {group.id for group in reader.groups(["batched"])})
    return asdict(bias) | {"turns": round(bias.turns, 4), "tokens": round(bias.tokens, 4)} if bias else None


def quantile(values: Sequence[float], share: float) -> float | None:
    """Smallest value that at least `share` of the values do not exceed; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return round(ordered[max(math.ceil(len(ordered) * share) - 1, 0)], 3)


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None


def _lag(steps: Sequence[StepRow], key: str, reduce: Any) -> float | None:
    values = [step.metrics[key] for step in steps if key in step.metrics]
    return float(reduce(values)) if values else None


def as_text(summary: dict[str, Any], directory: str) -> str:
    """The summary as Markdown that also reads well on a terminal. What is not known yet is a dash."""
    times = {key: _or_dash(value, " s") for key, value in summary["time_to_batch_s"].items()}
    lag = {key: _or_dash(value) for key, value in summary["policy_lag"].items()}
    left_out: dict[str, float] = summary["left_out_share"]
    first, last = _or_dash(summary["reward_first"]), _or_dash(summary["reward_last"])
    lines = [
        f"# {summary['name']}: {summary['status']}",
        "",
        f"- steps: {summary['steps']}, seed {summary['seed']}, {summary['wall_s']} s of wall time",
        f"- mean sampled reward: {first} (first 3 steps) -> {last} (last 3)",
        f"- by step: {sparkline(summary['rewards']) or '-'}",
        *[f"- greedy success on held-out tasks, {k}: {v}" for k, v in summary["greedy_heldout"].items()],
        f"- time to batch: mean {times['mean']}, p50 {times['p50']}, p95 {times['p95']}",
        f"- publication: {_publication_text(summary['publication'])}",
        *gpu_report.lines(summary["gpu_time"], summary["balance"], summary["time_to_batch_histogram"]),
        f"- verdicts: {_counts(summary['verdicts'])}",
        *_breaks(summary["sequences"]),
        f"- groups dropped: {_counts(summary['groups_dropped'])}",
        *([f"- divergence bands: {_counts(bands)}"] if (bands := summary["divergence_bands"]) else []),
        *[f"- left out of {family}: {share:.1%} of its tokens" for family, share in left_out.items() if share],
        f"- sandboxes: {sandboxes_text(summary['sandboxes'] or {})}",
        *_launching(summary["status"], summary["launching"]),
        f"- trained against started: {_bias_text(summary['selection_bias'])}",
        f"- policy lag: p50 {lag['p50']}, max {lag['max']}",
        "",
        f"Everything lies in {directory}: config.yaml, ledger.sqlite, metrics.jsonl, logs/, weights/, checkpoints/.",
    ]
    return "\n".join(lines) + "\n"


def _breaks(counts: dict[str, int]) -> list[str]:
    """Only where there were any."""
    if not counts["template_breaks"] and not counts["history_breaks"]:
        return []
    broken = f"{counts['template_breaks']} by the chat template, {counts['history_breaks']} by edited histories"
    return [f"- token sequences: {counts['num']}, broken {broken}; {counts['dropped_tokens']} tokens dropped"]


def _bias_text(bias: dict[str, Any] | None) -> str:
    if bias is None:
        return "-"
    cancelled = f", {bias['num_cancelled']} of {bias['num_started']} cancelled" if bias["num_cancelled"] else ""
    return f"turns {bias['turns']:+.1%}, tokens {bias['tokens']:+.1%}{cancelled}"


def _publication_text(figures: dict[str, Any] | None) -> str:
    if figures is None:
        return "-"
    latency, downtime = figures["latency_s"], figures["downtime_s"]
    size = f"{figures['received_bytes'] / (1 << 20):.2f} MiB a version"
    return f"{figures['method']}, mean {latency['mean']} s, p95 {latency['p95']} s, engines down {downtime} s, {size}"


def _launching(status: str, changed: dict[str, Any] | None) -> list[str]:
    """Only while it pauses."""
    if status != "running" or changed is None or changed["paused_s"] is None:
        return []
    return [f"- {launching_text(changed['paused_s'], changed['reason'])}"]


def _or_dash(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value}{unit}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"
