"""Collecting for real on this machine: naive, this controller, and TRL's GRPOTrainer with tools; and the prediction.

The same tiny model, tasks, waits and number of trajectories for all. TRL runs in .venv-trl (scripts/bench/setup_trl.sh)
and without sandboxes. It carries out the commands of a turn one after the other: its batches take long.

    python scripts/bench/collect_vs_trl.py [--batches 8] [--trl-batches 1]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from agentrl.bench.real import GROUP_SIZE, GROUPS, Real, in_launch_order, measure
from agentrl.bench.real_predicted import predict_real
from agentrl.tasks.dataset import load_dataset

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--trl-batches", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="agentrl-bench-") as name:
        folder = Path(name)
        real = asyncio.run(measure(folder, batches=arguments.batches, seed=0, say=say))
        predicted = predict_real(real.config, real.naive_ledger)
        trl_s = trl(real, folder, arguments.trl_batches)
    print(f"{GROUPS * GROUP_SIZE} trajectories a batch")
    print(f"TRL            {statistics.mean(trl_s):7.2f} s a batch, {len(trl_s)} of them")
    print(f"naive          {real.naive_s:7.2f} s a batch   simulated {predicted.naive_s:.2f}")
    print(f"full, steady   {real.full_steady_s:7.2f} s a batch   simulated {predicted.full_steady_s:.2f}")
    print(f"full / naive   {real.ratio:7.3f}             simulated {predicted.ratio:.3f}")
    print(f"full / TRL     {real.full_steady_s / statistics.mean(trl_s):7.3f}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def trl(real: Real, folder: Path, batches: int) -> list[float]:
    """Seconds of TRL's batches, which hold the same tasks as naive's."""
    order = [task.name for task in in_launch_order(load_dataset(real.config.tasks, workspace=folder), real.config)]
    order_file = folder / "order.json"
    order_file.write_text(json.dumps(order))
    model = real.naive_ledger.parent / "model"
    side = Path(__file__).with_name("trl_collect_side.py")
    command = [ROOT / ".venv-trl/bin/python", side, model, folder / "tasks", order_file, batches, GROUPS, GROUP_SIZE]
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=True)
    times: list[float] = json.loads(done.stdout.splitlines()[-1])["batches_s"]
    return times


if __name__ == "__main__":
    main()
