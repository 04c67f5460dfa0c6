"""agentrl's losses against those of TRL's GRPOTrainer, where TRL has the same one: value and gradient.

    scripts/bench/setup_trl.sh && .venv/bin/python scripts/bench/losses_vs_trl.py

Both sides get the same random log-probs (float64) of episodes of different lengths and the same advantages. Ends with
1 if a loss or a gradient differs by more than 1e-6 of its size. TRL anchors its ratio at the weights of the step's
start and has no behaviour policy without vLLM, so here behaviour equals proximal; the corrections of their difference
are held to a slow reference in tests/unit/test_losses.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from trainer_vs_trl import PYTHON, SIZES, make_model

from agentrl.trainer.config import Aggregation, AlgorithmConfig, KlEstimator, Surrogate
from agentrl.trainer.losses import LossInputs, loss_terms

EPISODES, WIDTH = 8, 12
TOLERANCE = 1e-6
CASES: dict[str, tuple[AlgorithmConfig, dict[str, Any]]] = {
    "PPO, token mean": (AlgorithmConfig(), {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28}),
    "dual clip": (
        AlgorithmConfig(dual_clip=3.0),
        {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28, "delta": 3.0},
    ),
    "sequence mean": (
        AlgorithmConfig(aggregation=Aggregation.sequence_mean, clip_high=0.2),
        {"loss_type": "grpo", "epsilon": 0.2},
    ),
    "constant divisor": (
        AlgorithmConfig(aggregation=Aggregation.constant, aggregation_tokens=WIDTH, clip_high=0.2),
        {"loss_type": "dr_grpo", "epsilon": 0.2},
    ),
    "GSPO": (
        AlgorithmConfig(surrogate=Surrogate.gspo, aggregation=Aggregation.sequence_mean, clip_high=0.2),
        {"loss_type": "grpo", "epsilon": 0.2, "importance_sampling_level": "sequence"},
    ),
    "CISPO": (
        AlgorithmConfig(surrogate=Surrogate.cispo, clip_low=1.0, clip_high=0.5),
        {"loss_type": "cispo", "epsilon_high": 1.5},
    ),
    "k3 penalty": (
        AlgorithmConfig(kl_coef=0.1, clip_high=0.2),
        {"loss_type": "dapo", "epsilon": 0.2, "beta": 0.1, "use_bias_correction_kl": False},
    ),
    "corrected k3 penalty": (
        AlgorithmConfig(kl_coef=0.1, kl_estimator=KlEstimator.k3_corrected, clip_high=0.2),
        {"loss_type": "dapo", "epsilon": 0.2, "beta": 0.1, "use_bias_correction_kl": True},
    ),
}


def make_arrays() -> dict[str, np.ndarray]:
    """[episodes, width] log-probs, where episode i has WIDTH - i tokens."""
    rng = np.random.default_rng(0)
    proximal = rng.uniform(-2, -0.2, (EPISODES, WIDTH))
    mask = np.arange(WIDTH)[None, :] < WIDTH - np.arange(EPISODES)[:, None]
    return {
        "current": proximal + rng.normal(0, 0.8, proximal.shape),
        "proximal": proximal,
        "reference": proximal + rng.normal(0, 0.4, proximal.shape),
        "advantages": rng.normal(0, 1, EPISODES),
        "mask": mask.astype(np.int64),
        "group_size": np.array(4),
    }


def ours(arrays: dict[str, np.ndarray], algorithm: AlgorithmConfig) -> tuple[float, np.ndarray]:
    """Our loss and its gradient, [episodes, width]."""
    places = arrays["mask"].astype(bool)
    current = torch.tensor(arrays["current"], requires_grad=True)
    proximal_n = torch.tensor(arrays["proximal"][places])
    terms = loss_terms(
        current[torch.from_numpy(places)],
        LossInputs(
            proximal_N=proximal_n,
            behaviour_N=proximal_n,
            advantages_N=torch.tensor(np.repeat(arrays["advantages"], places.sum(axis=1))),
            episodes_N=torch.tensor(np.nonzero(places)[0]),
            reference_N=torch.tensor(arrays["reference"][places]) if algorithm.kl_coef else None,
        ),
        algorithm,
    )
    loss = (terms.losses_N * terms.shares_N).sum() / terms.denominator
    loss.backward()
    assert current.grad is not None
    return loss.item(), current.grad.numpy()


def main() -> None:
    arrays = make_arrays()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_model(next(iter(SIZES.values())), folder / "model")
        np.savez(folder / "arrays.npz", **arrays)
        done = subprocess.run(
            [PYTHON["trl"], Path(__file__).with_name("trl_losses_side.py"), folder / "model", folder / "arrays.npz"],
            input=json.dumps([settings for _, settings in CASES.values()]),
            env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        sys.exit(f"trl failed:\n{done.stderr[-3000:]}")
    worst = 0.0
    print(f"{'':22} {'agentrl':>12} {'TRL':>12} {'gradient differs by':>20}")
    for (name, (algorithm, _)), theirs in zip(CASES.items(), json.loads(done.stdout.splitlines()[-1]), strict=True):
        loss, gradient = ours(arrays, algorithm)
        expected = np.array(theirs["gradient"])
        difference = float(np.linalg.norm(gradient - expected) / np.linalg.norm(expected))
        worst = max(worst, difference, abs(loss - theirs["loss"]) / abs(theirs["loss"]))
        print(f"{name:22} {loss:12.8f} {theirs['loss']:12.8f} {difference:20.1e}")
    if worst > TOLERANCE:
        sys.exit(f"a loss or gradient differs by {worst:.1e} of its size")


if __name__ == "__main__":
    main()
