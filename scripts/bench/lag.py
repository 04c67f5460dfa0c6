"""What forced policy lag does to learning, with and without corrections: the tiny model on the boxes tasks.

    .venv/bin/python scripts/bench/lag.py [--seeds 5] [--lag 0 --lag 4] [--variant decoupled] [--steps 40] [--lr 4e-4]

At step k the engine samples with the weights of version k - 1 - lag, so every token is `lag` versions old when it is
trained on (fewer in the first steps). Everything is in one process and deterministic: the embedded engine's core
samples, the trainer's Learner updates, and the boxes' sandbox is a few lines of text. The batch is that of
conf/exp.yaml: 8 groups of 16, four updates a step, three turns.

Score: mean reward, sampled at temperature 1 on fresh tasks, of the policies of the second half of the run, so that a
collapse counts that was recovered from; worst: the lowest of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from agentrl.trainer.config import AlgorithmConfig, Anchor, Importance, TrainerConfig

ROOT = Path(__file__).resolve().parents[2]
LAGS = (0, 1, 2, 4, 8)
GROUPS, GROUP_SIZE = 8, 16
MAX_TURNS, MAX_TURN_TOKENS, CONTEXT = 3, 8, 160
UPDATES = 4
VARIANTS = {
    "none": AlgorithmConfig(importance=Importance.none, updates_per_step=UPDATES),
    "ppo": AlgorithmConfig(anchor=Anchor.behaviour, importance=Importance.none, updates_per_step=UPDATES),
    "decoupled": AlgorithmConfig(updates_per_step=UPDATES),
    "capped": AlgorithmConfig(importance_cap=1.0, updates_per_step=UPDATES),
    "banded": AlgorithmConfig(
        down_weight_divergence=0.05, truncate_divergence=0.1, drop_divergence=0.2, updates_per_step=UPDATES
    ),
    "masked": AlgorithmConfig(token_ratio_min=0.5, token_ratio_max=2.0, updates_per_step=UPDATES),
}
"""none: old tokens count as if they were on policy. ppo: the ratio to the sampling policy is clipped. decoupled: the
default, clipped ratio to proximal and truncated importance weights. The others are the default and: weights of at most
1 (capped); groups that count less, are capped at 1 or are dropped as they diverge (banded); tokens rejected whose ratio
is outside [1/2, 2] (masked)."""


@dataclass
class Attempt:
    """One episode in the text world."""

    named: str
    group: str
    ids: list[int]
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    copied: str | None = None
    turns: int = 0
    done: bool = False

    def act(self, command: str) -> str:
        """Run a command; what the agent would be shown."""
        words = command.split()
        if words == ["done"]:
            self.done = True
        elif words == ["cat", "note"]:
            return self.named
        elif len(words) == 3 and words[0] == "cp" and words[2] == "answer":
            self.copied = words[1]
        return "(no output)"

    @property
    def reward(self) -> float:
        return float(self.copied == self.named)


class World:
    """Samples episodes from the weights of a folder."""

    def __init__(self, folder: Path) -> None:
        import torch

        from agentrl.inference.embedded.core import EngineCore
        from agentrl.inference.embedded.model import open_model
        from agentrl.inference.embedded.scheduler import Limits
        from agentrl.rollout.chat import Chat, Message
        from agentrl.tasks.families.boxes import INSTRUCTION

        self._chat = Chat.load(folder)
        self._prompt = self._chat.prompt([Message("user", INSTRUCTION)])
        episodes = GROUPS * GROUP_SIZE
        self._core = EngineCore(
            open_model(folder, dtype=torch.float32, context_length=CONTEXT),
            folder,
            limits=Limits(max_running=episodes, max_total_tokens=episodes * CONTEXT, prefill_tokens=episodes * CONTEXT),
            context_length=CONTEXT,
            version="0",
            dtype=torch.float32,
        )

    def load(self, folder: Path) -> None:
        from agentrl.inference.embedded.core import Update

        self._core.update(Update(folder, folder.name, flush=True))

    def attempt(self, name: str, rng: Random) -> list[Attempt]:
        """A batch of finished episodes; groups are tasks with another box named in each."""
        from agentrl.tasks.families.boxes import NAMES

        attempts = []
        for group in range(GROUPS):
            named = rng.choice(NAMES)
            attempts += [Attempt(named, f"{name}-{group}", list(self._prompt)) for _ in range(GROUP_SIZE)]
        for attempt in attempts:
            attempt.mask, attempt.logprobs = [0] * len(attempt.ids), [0.0] * len(attempt.ids)
        while live := [attempt for attempt in attempts if not attempt.done and attempt.turns < MAX_TURNS]:
            self._turn(live, rng)
        return attempts

    def _turn(self, live: Sequence[Attempt], rng: Random) -> None:
        from agentrl.inference.embedded.sequence import Sampling, Sequence

        sampling = Sampling(max_new_tokens=MAX_TURN_TOKENS, stop_ids=frozenset(self._chat.stop_ids))
        for key, attempt in enumerate(live):
            self._core.submit(
                Sequence(
                    key=key,
                    rid=f"{key:04d}",
                    tokens=list(attempt.ids),
                    num_prompt=len(attempt.ids),
                    sampling=sampling,
                    seed=rng.getrandbits(62),
                )
            )
        waiting = len(live)
        while waiting:
            for snapshot in self._core.step() or []:
                if snapshot.end is not None:
                    self._take(live[snapshot.key], snapshot.output_ids, snapshot.logprobs)
                    waiting -= 1

    def _take(self, attempt: Attempt, ids: list[int], logprobs: list[float]) -> None:
        attempt.turns += 1
        attempt.ids += ids
        attempt.mask += [1] * len(ids)
        attempt.logprobs += logprobs
        shown = attempt.act(self._chat.decode(ids))
        if not attempt.done and attempt.turns < MAX_TURNS:
            bridge = self._chat.bridge("user", shown, closed=ids[-1] == self._chat.end_id)
            attempt.ids += bridge
            attempt.mask += [0] * len(bridge)
            attempt.logprobs += [0.0] * len(bridge)


def trajectory(attempt: Attempt, number: int, version: int) -> Any:
    import numpy as np

    from agentrl.wire import Trajectory

    mask = np.array(attempt.mask, dtype=np.uint8)
    return Trajectory(
        episode=f"{attempt.group}-{number}",
        group=attempt.group,
        task="boxes",
        reward=attempt.reward,
        ids=np.array(attempt.ids, dtype=np.int32).tobytes(),
        mask=mask.tobytes(),
        logprobs=np.array(attempt.logprobs, dtype=np.float32).tobytes(),
        versions=np.where(mask == 1, version, -1).astype(np.int32).tobytes(),
        num_turns=attempt.turns,
    )


def train(start: Path, *, lag: int, algorithm: AlgorithmConfig, steps: int, lr: float, seed: int) -> dict[str, Any]:
    """One run from the start weights: score, worst, the curve, and the smallest effective sample size of a step."""
    import torch

    from agentrl.trainer.batching import flatten
    from agentrl.trainer.export import full_weights, write_folder
    from agentrl.trainer.learner import Learner, make_optimizer
    from agentrl.trainer.policy import Policy
    from agentrl.trainer.probe import make_probe
    from agentrl.trainer.world import World as Ranks

    torch.manual_seed(seed)
    ranks = Ranks(rank=0, size=1)
    config = TrainerConfig(world_size=1, lr=lr, grad_clip=0.3)
    policy = Policy.load(start, ranks.mesh(), 1.0)
    learner = Learner(
        world=ranks,
        policy=policy,
        reference=None,
        optimizer=make_optimizer(policy, config),
        trainer=config,
        algorithm=algorithm,
        total_steps=steps,
    )
    world, curve, ess = World(start), [], []
    with tempfile.TemporaryDirectory() as temporary:
        versions = [start]
        for step in range(1, steps + 1):
            version = max(0, step - 1 - lag)
            world.load(versions[version])
            attempts = world.attempt(f"s{step}", Random(f"train/{seed}/{step}"))
            trajectories = [trajectory(a, n, version) for n, a in enumerate(attempts)]
            batch = flatten(trajectories, algorithm)
            ess.append(learner.step(batch, step)["ess"])
            versions.append(Path(temporary) / f"v{step}")
            probe = make_probe(policy, trajectories[0])
            write_folder(versions[-1], start, probe, full_weights(policy.model, 0), None)
            if step > steps // 2:
                world.load(versions[-1])
                looked = world.attempt("look", Random(f"look/{seed}/{step}"))
                curve.append(statistics.fmean(a.reward for a in looked))
    return {"score": statistics.fmean(curve), "worst": min(curve), "ess": min(ess), "curve": curve}


def run_seed(seed: int, lags: Sequence[int], variants: Sequence[str], steps: int, lr: float) -> None:
    """All runs of one seed, a line of JSON each."""
    import torch

    from agentrl.model.config import ModelConfig, Recipe
    from agentrl.model.prepare import prepare_model
    from agentrl.trainer.world import World as Ranks

    torch.set_num_threads(1)
    Ranks.join(600)
    with tempfile.TemporaryDirectory() as temporary:
        start = prepare_model(ModelConfig(recipe=Recipe.tiny), seed, Path(temporary) / "start", lambda _: None)
        for variant in variants:
            for lag in lags:
                began = time.process_time()
                result = train(start, lag=lag, algorithm=VARIANTS[variant], steps=steps, lr=lr, seed=seed)
                row = {"seed": seed, "variant": variant, "lag": lag, "cpu_s": time.process_time() - began, **result}
                print(json.dumps(row), flush=True)


def table(rows: Sequence[dict[str, Any]], variants: Sequence[str], lags: Sequence[int]) -> None:
    """Print the mean and the lowest of the seeds' scores, and the worst policy of any seed."""
    print("\nscore: mean over seeds (lowest seed; worst policy)")
    print(f"{'':10}" + "".join(f"{f'lag {lag}':>22}" for lag in lags))
    for variant in variants:
        cells = []
        for lag in lags:
            ours = [row for row in rows if row["variant"] == variant and row["lag"] == lag]
            scores, worst = [row["score"] for row in ours], min(row["worst"] for row in ours)
            cells.append(f"{statistics.fmean(scores):.3f} ({min(scores):.2f}; {worst:.2f})")
        print(f"{variant:10}" + "".join(f"{cell:>22}" for cell in cells))
    print("smallest effective sample size of any step")
    for variant in variants:
        sizes = [min(r["ess"] for r in rows if r["variant"] == variant and r["lag"] == lag) for lag in lags]
        print(f"{variant:10}" + "".join(f"{size:>22.2f}" for size in sizes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--lag", type=int, action="append", help="a forced lag; all of 0, 1, 2, 4, 8 by default")
    parser.add_argument("--variant", choices=list(VARIANTS), action="append", help="decoupled, none and ppo by default")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--lr", type=float, default=4e-4)
    parser.add_argument("--seed", type=int, help="run one seed only and print a line of JSON a run")
    options = parser.parse_args()
    lags, variants = options.lag or list(LAGS), options.variant or ["decoupled", "none", "ppo"]
    if options.seed is not None:
        run_seed(options.seed, lags, variants, options.steps, options.lr)
        return
    rows: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        command = [sys.executable, __file__, "--seed", str(seed), "--steps", str(options.steps)]
        command += ["--lr", str(options.lr)]
        command += [part for lag in lags for part in ("--lag", str(lag))]
        command += [part for variant in variants for part in ("--variant", variant)]
        done = subprocess.run(
            command,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        for row in found:
            curve = " ".join(f"{reward:.2f}" for reward in row.pop("curve"))
            print(
                f"seed {seed} {row['variant']:10} lag {row['lag']}: {row['score']:.3f}  {curve}  {row['cpu_s']:.0f} s"
            )
        rows += found
    table(rows, variants, lags)


if __name__ == "__main__":
    main()
