"""Seconds and peak memory of one training step: agentrl's trainer against the training part of TRL's GRPOTrainer.

    scripts/bench/setup_trl.sh && .venv/bin/python scripts/bench/trainer_vs_trl.py

Both sides get the same start weights and the same fixed multi-turn batch (prompt, then sampled tokens and observations
by turns), one process, one thread, fp32, no KL, the token mean over the batch, one update. The behaviour log-probs are
the model's own, so that the importance weights are 1 and the gradients must be equal: their norms are printed. The
sides take turns; each runs at several micro-batch sizes and is represented by its fastest. TRL's generation is
replaced by the recorded batch; its time is from on_step_begin to on_step_end. CPU time is the one to trust on a busy
machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
PYTHON = {"agentrl": ROOT / ".venv/bin/python", "trl": ROOT / ".venv-trl/bin/python"}
SCRIPT = {"agentrl": Path(__file__), "trl": Path(__file__).with_name("trl_side.py")}


@dataclass(frozen=True)
class Size:
    """A model and a batch."""

    hidden: int
    layers: int
    heads: int
    mlp: int
    vocab: int
    groups: int
    group_size: int
    prompt: tuple[int, int]
    """Shortest and longest prompt, tokens; so for completions, of which about 60 % are sampled."""
    completion: tuple[int, int]
    rows_per_pass: tuple[int, ...]
    """Micro-batch sizes to try, in episodes (TRL) and in as many padded tokens (agentrl)."""
    steps: int


SIZES = {
    "tiny (0.1M)": Size(64, 2, 4, 192, 42, 8, 16, (32, 48), (16, 64), (8, 32, 128), 12),
    "small (30M)": Size(512, 8, 8, 1376, 8192, 2, 8, (32, 64), (32, 64), (4, 16), 5),
}


def make_model(size: Size, folder: Path) -> None:
    """Random Llama with tied embeddings."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from agentrl.model.tiny import build_tokenizer, save_tokenizer

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        intermediate_size=size.mlp,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        initializer_range=0.05,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    save_tokenizer(build_tokenizer(), folder)


def make_batch(size: Size, path: Path) -> int:
    """Write ids and mask per episode, rewards and groups; returns the longest episode."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    longest = 0
    for row in range(size.groups * size.group_size):
        prompt, completion = rng.integers(*size.prompt, endpoint=True), rng.integers(*size.completion, endpoint=True)
        mask = np.zeros(prompt + completion, dtype=np.uint8)
        mask[prompt:] = (np.arange(completion) % 10) < 6  # turns of 6 sampled tokens and 4 of observation
        arrays[f"mask{row}"] = mask
        arrays[f"ids{row}"] = rng.integers(2, size.vocab, mask.size).astype(np.int32)
        arrays[f"prompt{row}"] = prompt
        longest = max(longest, mask.size)
    rewards = rng.integers(0, 2, (size.groups, size.group_size)).astype(np.float32)
    np.savez(path, rewards=rewards, **arrays)
    return longest


def agentrl_side(folder: Path, max_tokens: int, steps: int) -> dict[str, Any]:
    """Our side, in a process of its own."""
    import torch

    from agentrl.trainer.batching import flatten
    from agentrl.trainer.config import AlgorithmConfig, TrainerConfig
    from agentrl.trainer.learner import Learner, make_optimizer
    from agentrl.trainer.policy import Policy
    from agentrl.trainer.world import World
    from agentrl.wire import Trajectory

    torch.set_num_threads(1)
    world = World.join(600)
    policy = Policy.load(folder, world.mesh(), 1.0)
    algorithm = AlgorithmConfig()
    config = TrainerConfig(lr=1e-6, lr_warmup_steps=0, micro_batch_tokens=max_tokens)
    learner = Learner(
        world=world,
        policy=policy,
        reference=None,
        optimizer=make_optimizer(policy, config),
        trainer=config,
        algorithm=algorithm,
        total_steps=steps,
    )
    data = np.load(folder / "batch.npz")
    groups, group_size = data["rewards"].shape

    def trajectories(logprobs: list[np.ndarray] | None) -> list[Trajectory]:
        return [
            Trajectory(
                episode=str(row),
                group=str(row // group_size),
                task="",
                reward=float(data["rewards"].flat[row]),
                ids=data[f"ids{row}"].tobytes(),
                mask=data[f"mask{row}"].tobytes(),
                logprobs=(
                    np.zeros(data[f"mask{row}"].size, np.float32) if logprobs is None else logprobs[row]
                ).tobytes(),
                versions=np.zeros(data[f"mask{row}"].size, np.int32).tobytes(),
                num_turns=1,
            )
            for row in range(groups * group_size)
        ]

    batch = flatten(trajectories(None), algorithm)
    own_N = learner.evaluate(policy, batch, list(range(groups * group_size))).numpy()  # noqa: N806
    behaviour = []
    for row in range(groups * group_size):
        row_logprobs = np.zeros(data[f"mask{row}"].size, np.float32)
        row_logprobs[batch.positions[row]] = own_N[batch.tokens_of([row])]
        behaviour.append(row_logprobs)
    records = trajectories(behaviour)

    before_mib = peak_mib()
    wall_s, cpu_s, norms = [], [], []
    for step in range(1, steps + 1):
        wall, cpu = time.perf_counter(), time.process_time()
        metrics = learner.step(flatten(records, algorithm), step)
        wall_s.append(time.perf_counter() - wall)
        cpu_s.append(time.process_time() - cpu)
        norms.append(metrics["grad_norm"])
    return {
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "grad_norm": norms[0],
        "before_mib": before_mib,
        "peak_mib": peak_mib(),
    }


def peak_mib() -> float:
    """Largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run_side(side: str, folder: Path, per_pass: int, steps: int) -> dict[str, Any]:
    command = [PYTHON[side], SCRIPT[side], "--side", folder, str(per_pass), str(steps)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{side} failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def compare(name: str, size: Size, repeats: int) -> None:
    """Print both sides of one size, medians over steps, and TRL's seconds over ours."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_model(size, folder)
        longest = make_batch(size, folder / "batch.npz")
        results: dict[str, dict[int, list[dict[str, Any]]]] = {"agentrl": {}, "trl": {}}
        for _ in range(repeats):
            for rows in size.rows_per_pass:
                for side, per_pass in (("agentrl", rows * longest), ("trl", rows)):
                    results[side].setdefault(rows, []).append(run_side(side, folder, per_pass, size.steps))
    print(f"\n{name}: {size.groups * size.group_size} episodes of up to {longest} tokens")
    print(f"{'':8} {'rows a pass':>12} {'wall s':>8} {'CPU s':>8} {'peak MiB':>9} {'step adds':>10} {'grad norm':>11}")
    fastest: dict[str, tuple[float, float]] = {}
    for side, by_rows in results.items():
        for rows, runs in by_rows.items():
            wall_s, cpu_s = (
                statistics.median([t for run in runs for t in run[clock][1:]]) for clock in ("wall_s", "cpu_s")
            )
            peak, before = (max(run[key] for run in runs) for key in ("peak_mib", "before_mib"))
            best = fastest.get(side, (wall_s, cpu_s))
            fastest[side] = (min(best[0], wall_s), min(best[1], cpu_s))
            print(
                f"{side:8} {rows:12d} {wall_s:8.3f} {cpu_s:8.3f} {peak:9.0f} {peak - before:10.0f}"
                f" {runs[0]['grad_norm']:11.6f}"
            )
    wall, cpu = (trl / ours for trl, ours in zip(fastest["trl"], fastest["agentrl"], strict=True))
    print(f"TRL's fastest step takes {wall:.2f} times the wall time of ours, {cpu:.2f} times the CPU time", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", nargs=3, metavar=("FOLDER", "TOKENS", "STEPS"), help="run our side, print JSON")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--size", choices=list(SIZES), action="append")
    arguments = parser.parse_args()
    if arguments.side:
        folder, tokens, steps = arguments.side
        print(json.dumps(agentrl_side(Path(folder), int(tokens), int(steps))))
        return
    for name in arguments.size or SIZES:
        compare(name, SIZES[name], arguments.repeats)


if __name__ == "__main__":
    main()
