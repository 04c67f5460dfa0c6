"""Derive `agentrl/conf/workload/terminal_bench.yaml` from a CSV of public Terminal-Bench trials.

    python scripts/derive_terminal_bench.py TRIALS.csv > agentrl/conf/workload/terminal_bench.yaml

Trials give seconds of set-up, agent and verifier, the outcome and the failure mode; one row each, by task and agent.
What they do not give (tokens, tool latencies, warm starts) is that of W-TB.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

from agentrl.simulation.config import load_workload
from agentrl.simulation.fit import fit_success, group_share, quantiles
from agentrl.simulation.laws import Beta, Quantiles
from agentrl.simulation.replay import INFRASTRUCTURE, seconds_of_turn, timed_trials

HEADER = """\
# Public Terminal-Bench trials ({trials} timed ones of {tasks} tasks by {agents} agents): seconds of set-up, agent and
# verifier, failures and outcomes as they were. The agent's seconds count as turns of {turn_s:.1f} s, so that the median
# trial has 25; tokens, tool latencies and warm starts are those of W-TB. From scripts/derive_terminal_bench.py.
"""


def main() -> None:
    rows = timed_trials(Path(sys.argv[1]))
    base = load_workload("w_tb")
    turn_s = seconds_of_turn([float(row["agent_s"]) for row in rows])
    turns = [max(float(row["agent_s"]) / turn_s, 1.0) for row in rows]
    failed = statistics.mean(row["failure_mode"] in INFRASTRUCTURE for row in rows)
    trials = grouped(turns, rows, lambda row: (row["task"], row["agent"]))
    success = fit_success(grouped([float(row["resolved"] or 0) for row in rows], rows, lambda row: row["task"]))
    assert isinstance(success, Beta)
    print(
        HEADER.format(
            trials=len(rows),
            tasks=len({row["task"] for row in rows}),
            agents=len({row["agent"] for row in rows}),
            turn_s=turn_s,
        ),
        end="",
    )
    laws = Path(__file__).parents[1] / "agentrl" / "conf" / "workload" / "w_tb.yaml"
    derived = {
        "turns": shown(quantiles(turns)),
        "turns_group_share": f" {group_share(trials):.2f}",
        "verifier_s": shown(quantiles([float(row["verifier_s"]) for row in rows])),
        "start_cold_s": shown(quantiles([float(row["setup_s"]) for row in rows])),
        "start_hang_share": " 0  # hung starts are among the starts",
        "failure_share": f" {failed:.3f}",
        "failure_share_hygiene": f" {failed * base.failure_share_hygiene / base.failure_share:.3f}",
        "success": f" {{law: beta, a: {success.a:.2f}, b: {success.b:.2f}}}",
    }
    for line in laws.read_text(encoding="utf-8").splitlines():
        key = line.partition(":")[0]
        if not line.startswith("#"):
            print(f"{key}:{derived[key]}" if key in derived else line)


def shown(law: Quantiles) -> str:
    shares = ", ".join(f"{share:g}" for share in law.shares)
    values = ", ".join(f"{value:.3g}" if value < 1000 else f"{value:.0f}" for value in law.values)
    return f"\n  law: quantiles\n  shares: [{shares}]\n  values: [{values}]"


def grouped(
    values: list[float], rows: list[dict[str, str]], key: Callable[[Mapping[str, str]], object]
) -> list[list[float]]:
    groups: dict[object, list[float]] = defaultdict(list)
    for value, row in zip(values, rows, strict=True):
        groups[key(row)].append(value)
    return list(groups.values())


if __name__ == "__main__":
    main()
