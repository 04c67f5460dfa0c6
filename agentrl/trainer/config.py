"""Configuration of the trainer and of the learning algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Advantage(Enum):
    """How rewards of a group become advantages."""

    mean = "mean"
    """r - mean(group): no std division (Dr. GRPO, arXiv 2503.20783)."""
    std = "std"
    """(r - mean(group)) / std(group): the original GRPO."""


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig:
    group_size: int = 16
    """Episodes of one task whose rewards are normalised together."""

    advantage: Advantage = Advantage.mean
    """How rewards become advantages."""

    clip_low: float = 0.2
    """Lower clip of the policy ratio: 1 - clip_low."""

    clip_high: float = 0.28
    """Upper clip: 1 + clip_high; above clip_low keeps exploration (clip-higher, arXiv 2503.14476)."""

    importance_cap: float = 2.0
    """Cap of the per-token weight exp(proximal - behaviour log-prob): truncated importance sampling."""

    kl_coef: float = 0.0
    """Weight of the k3 KL penalty to the starting policy. 0 loads no reference model."""

    updates_per_step: int = 1
    """Optimizer updates per batch; the batch is split by groups. One step stays one policy version."""


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    world_size: int = 2
    """torchrun ranks."""

    lr: float = 1e-3
    """Peak learning rate of AdamW."""

    lr_warmup_steps: int = 5
    """Steps of linear warm-up from 0."""

    weight_decay: float = 0.0
    """AdamW weight decay."""

    beta1: float = 0.9
    """AdamW first moment decay."""

    beta2: float = 0.95
    """AdamW second moment decay."""

    grad_clip: float = 1.0
    """Largest global gradient norm."""

    micro_batch_tokens: int = 8192
    """Padded tokens of one forward pass on one rank; more tokens are split and accumulated."""

    threads: int = 1
    """OMP threads of one rank."""

    keep_checkpoints: int = 2
    """Checkpoints kept on disk, newest first. One is written every step: it carries the applied batch's id."""

    start_timeout_s: float = 180.0
    """Until a started trainer must have asked for its first batch."""

    step_timeout_s: float = 900.0
    """Until a served batch must be reported done; later the trainer is restarted."""

    max_restarts: int = 5
    """Restarts of the trainer job before the run gives up."""
