"""Time to a trainable batch in virtual time: the controller against its baselines on the reference workload.

Cold is the time from nothing running to the first complete batch; steady is the mean time between batches with
carry-over, the first three dropped. The same seeds, so the same episodes, for every policy; mean and standard deviation
over seeds. The figures at the right are of all seeds together.

    python scripts/bench/collect.py [--seeds N] [--policy NAME]... [--workload W] [--hardware H] [--set KEY=VALUE]...
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from typing import Any

from agentrl.errors import UserError
from agentrl.simulation.config import load_hardware, load_workload
from agentrl.simulation.figures import Figures
from agentrl.simulation.policies import Policy, measure

COLUMNS = ("busy", "prefill_per_generated", "bias_turns", "bias_tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--policy", type=Policy, action="append", choices=list(Policy), help="default: all but steady")
    parser.add_argument("--workload", default="w_tb")
    parser.add_argument("--hardware", default="h8")
    parser.add_argument("--set", action="append", default=[], help="of the workload: turns.sigma=0.5")
    parser.add_argument("--machine", action="append", default=[], help="of the hardware: engine.kv_tokens=300000")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    try:
        workload = load_workload(arguments.workload, arguments.set)
        hardware = load_hardware(arguments.hardware, arguments.machine)
    except UserError as error:
        sys.exit(str(error))
    results: dict[str, Any] = {}
    for policy in arguments.policy or [policy for policy in Policy if policy is not Policy.STEADY]:
        began = time.process_time()
        runs = [measure(policy, workload, hardware, seed=seed) for seed in range(arguments.seeds)]
        results[policy.value] = summarise(runs) | {"cpu_s_per_seed": (time.process_time() - began) / len(runs)}
        if not arguments.json:
            show(policy.value, results[policy.value])
    if arguments.json:
        print(json.dumps(results, indent=1))


def summarise(runs: list[Figures]) -> dict[str, Any]:
    """Means over seeds; worst cases where only those matter."""
    steady = [run.steady_s for run in runs if run.steady_s is not None]
    return {
        "cold_s": spread([run.cold_s for run in runs]),
        "steady_s": spread(steady) if steady else None,
        **{name: statistics.mean(getattr(run, name) for run in runs) for name in COLUMNS},
        "span_p95": max(run.span_p95 for run in runs),
        "span_max": max(run.span_max for run in runs),
        "retractions": sum(run.retractions for run in runs),
        "infra_as_reward": sum(run.infra_as_reward for run in runs),
        "lost": sum(run.lost for run in runs),
        "runs": [dataclasses.asdict(run) for run in runs],
    }


def spread(values: list[float]) -> dict[str, float]:
    return {"mean": statistics.mean(values), "sd": statistics.stdev(values) if len(values) > 1 else 0.0}


def show(name: str, result: dict[str, Any]) -> None:
    times = " ".join(
        f"{key[:-2]} {result[key]['mean']:6.0f} s (sd {result[key]['sd']:.0f})"
        for key in ("cold_s", "steady_s")
        if result[key] is not None
    )
    rest = " ".join(f"{key} {result[key]:.3g}" for key in (*COLUMNS, "span_p95", "infra_as_reward", "lost"))
    print(f"{name:10} {times}  {rest}  cpu {result['cpu_s_per_seed']:.1f} s", flush=True)


if __name__ == "__main__":
    main()
