"""Configuration of the trainer and of the learning algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from agentrl.bounds import Count, CountOrZero, Decay, NonNegative, Positive, PositiveShare, Seconds


class Advantage(Enum):
    """How rewards of a group become advantages."""

    mean = "mean"
    """r - mean(group): no std division (Dr. GRPO, arXiv 2503.20783)."""
    std = "std"
    """(r - mean(group)) / std(group): the original GRPO."""


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig:
    group_size: Count = 16
    """Episodes of one task whose rewards are normalised together."""

    advantage: Advantage = Advantage.mean
    """How rewards become advantages."""

    clip_low: PositiveShare = 0.2
    """Lower clip of the policy ratio: 1 - clip_low."""

    clip_high: Positive = 0.28
    """Upper clip: 1 + clip_high; above clip_low keeps exploration (clip-higher, arXiv 2503.14476)."""

    importance_cap: Positive = 2.0
    """Cap of the per-token weight exp(proximal - behaviour log-prob): truncated importance sampling."""

    kl_coef: NonNegative = 0.0
    """Weight of the k3 KL penalty to the starting policy. 0 loads no reference model."""

    updates_per_step: Count = 1
    """Optimizer updates per batch; the batch is split by groups. One step stays one policy version."""


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    world_size: Count = 2
    """torchrun ranks."""

    lr: Positive = 1e-3
    """Peak learning rate of AdamW."""

    lr_warmup_steps: CountOrZero = 5
    """Steps of linear warm-up from 0."""

    weight_decay: NonNegative = 0.0
    """AdamW weight decay."""

    beta1: Decay = 0.9
    """AdamW first moment decay."""

    beta2: Decay = 0.95
    """AdamW second moment decay."""

    grad_clip: Positive = 1.0
    """Largest global gradient norm."""

    micro_batch_tokens: Count = 2048
    """Padded tokens of one forward pass on one rank; more tokens are split and accumulated. What fits a CPU's cache is
    fastest there (1000 to 2000 for the tiny model); GPUs want more."""

    threads: Count = 1
    """OMP threads of one rank."""

    keep_checkpoints: Count = 2
    """Checkpoints kept on disk, newest first. One is written every step: it carries the applied batch's id."""

    start_timeout_s: Seconds = 180.0
    """Until a started trainer must have asked for its first batch."""

    step_timeout_s: Seconds = 900.0
    """Until a served batch must be reported done; later the trainer is restarted."""

    collective_timeout_s: Seconds = 300.0
    """Until ranks that wait for a hung one end the trainer. Must exceed two losses of the controller in a row (the
    ranks wait while rank 0 retries) and stay under step_timeout_s."""

    max_restarts: CountOrZero = 5
    """Restarts of the trainer job before the run gives up."""
