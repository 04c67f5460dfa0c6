"""The scalars that a step reports (docs/metrics.md), from what its updates left."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agentrl.trainer import mismatch
from agentrl.trainer.batching import FlatBatch
from agentrl.trainer.corrections.group_bands import left_out_by_family
from agentrl.trainer.corrections.kl import k3
from agentrl.trainer.losses import LossInputs, LossTerms


@dataclass(frozen=True, kw_only=True)
class UpdateOutcome:
    """What one optimizer update left to report."""

    tokens_N: Tensor
    """The update's tokens, as indices on the batch's axis N."""
    terms: LossTerms
    """Of all its tokens, before the update."""
    grad_norm: float


def step_metrics(
    batch: FlatBatch, inputs: LossInputs, outcomes: list[UpdateOutcome], *, version: int, mismatch_limit: float
) -> dict[str, float]:
    """Metrics of the step that trains `version`, but for those of time and of the optimizer."""
    rewards = np.array(list({t.episode: t.reward for t in batch.trajectories}.values()))
    proximal_N = inputs.proximal_N.numpy()
    log_B = mismatch.log_ratio(proximal_N, batch.behaviour_N)
    trained_N = np.zeros(batch.num_sampled, dtype=bool)
    for outcome in outcomes:
        trained_N[outcome.tokens_N.numpy()] = outcome.terms.keep_N.numpy()
    metrics = {
        "loss": _loss(outcomes),
        "grad_norm": float(np.mean([o.grad_norm for o in outcomes])) if outcomes else 0.0,
        "reward_mean": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "entropy": -_mean([inputs.proximal_N[torch.isfinite(inputs.proximal_N)]]),
        "ratio_clipped_share": _mean([o.terms.bounded_N for o in outcomes]),
        "rejected_share": 1.0 - _mean([o.terms.keep_N for o in outcomes]) if outcomes else 0.0,
        "importance_mean": _mean([o.terms.weights_N for o in outcomes]),
        "num_tokens": float(sum(t.num_tokens for t in batch.trajectories)),
        "num_sampled_tokens": float(batch.num_sampled),
        "num_trajectories": float(len(rewards)),
        "num_sequences": float(len(batch.trajectories)),
    }
    if inputs.reference_N is not None:
        metrics["kl_ref"] = _mean([k3(inputs.reference_N, inputs.proximal_N)])
    if batch.num_sampled:
        metrics |= mismatch.divergence(log_B)
        metrics |= mismatch.divergence_by_lag(log_B, batch.versions_N, version)
        metrics |= left_out_by_family(batch.of_tokens([t.task for t in batch.trajectories]), trained_N)
    metrics |= mismatch.policy_lag(batch.versions_N, version)
    metrics |= mismatch.engine_mismatch(proximal_N, batch.behaviour_N, batch.versions_N == version, mismatch_limit)
    return metrics


def _loss(outcomes: list[UpdateOutcome]) -> float:
    """Mean over the step: the updates' sums over their denominators' sum."""
    total = sum(float((o.terms.losses_N.double() * o.terms.shares_N).sum()) for o in outcomes)
    return total / max(1, sum(o.terms.denominator for o in outcomes))


def _mean(parts: list[Tensor]) -> float:
    values = torch.cat(parts).double() if parts else torch.zeros(0)
    return float(values.mean()) if len(values) else 0.0
