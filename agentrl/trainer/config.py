"""Configuration of the trainer and of the learning algorithm. docs/decisions/corrections.md says which one when."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from agentrl.bounds import Count, CountOrZero, Decay, Factor, NonNegative, Positive, PositiveShare, Seconds, Share, Text


class Advantage(Enum):
    """How rewards of a group become advantages."""

    mean = "mean"
    """r - mean(group): no std division (Dr. GRPO, arXiv 2503.20783)."""
    std = "std"
    """(r - mean(group)) / std(group): the original GRPO."""
    leave_one_out = "leave_one_out"
    """r - mean(the others of the group): RLOO (arXiv 2402.14740)."""
    batch = "batch"
    """(r - mean(group)) / std of that over the batch: REINFORCE++-baseline (arXiv 2501.03262)."""


class Surrogate(Enum):
    """What is maximised for one token, from the ratio of the current policy to its anchor."""

    ppo = "ppo"
    """min(ratio A, clip(ratio) A) (arXiv 1707.06347)."""
    cispo = "cispo"
    """sg(clip(ratio)) A log pi: clipped tokens keep a gradient (arXiv 2506.13585)."""
    gspo = "gspo"
    """PPO on the episode's geometric mean ratio (arXiv 2507.18071); wants clips of 3e-4 and 4e-4."""
    dppo_tv = "dppo_tv"
    """ratio A unless the token's probability has moved over tv_bound in A's direction (arXiv 2602.04879)."""


class Anchor(Enum):
    """The policy whose ratio the surrogate bounds."""

    proximal = "proximal"
    """The trainer's weights at the start of the step: decoupled PPO (arXiv 2505.24298)."""
    behaviour = "behaviour"
    """The policy that sampled the token, of whatever version: PPO as it was. Needs importance none."""


class Importance(Enum):
    """The weight that makes up for behaviour being another policy than proximal."""

    none = "none"
    """No weight: old tokens count as if they were on policy."""
    token = "token"
    """min(proximal / behaviour, cap) of each token: truncated importance sampling."""
    sequence = "sequence"
    """min(product over the episode, cap): unbiased up to the cap, and far noisier."""


class Aggregation(Enum):
    """How losses of tokens become one number. Rejected tokens are in no denominator."""

    token_mean = "token_mean"
    """Mean over all tokens of the update, on all ranks (DAPO, arXiv 2503.14476)."""
    constant = "constant"
    """Sum over aggregation_tokens x episodes: no episode's length matters (Dr. GRPO, arXiv 2503.20783)."""
    sequence_mean = "sequence_mean"
    """Mean over episodes of each one's token mean (GRPO, arXiv 2402.03300)."""


class KlEstimator(Enum):
    """Estimate of KL(current, start model) used as a penalty."""

    k1 = "k1"
    """log(pi / ref), with the gradient of a reward: unbiased and noisy."""
    k3 = "k3"
    """rho - 1 - log rho, rho = ref / pi: never negative; its gradient is biased."""
    k3_corrected = "k3_corrected"
    """k3 x pi / behaviour: unbiased gradient, off policy too (DeepSeek-V3.2, arXiv 2512.02556)."""


class LrSchedule(Enum):
    """The learning rate after its warm-up."""

    constant = "constant"
    """Stays at lr."""
    linear = "linear"
    """Falls in a line to lr x lr_final_share at the last step."""
    cosine = "cosine"
    """Falls along half a cosine to lr x lr_final_share at the last step."""


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig:
    """Ratios below are proximal / behaviour probabilities: what a token's age and the engine's numerics did to it."""

    group_size: Count = 16
    """Episodes of one task whose rewards are normalised together."""

    advantage: Advantage = Advantage.mean
    """How rewards become advantages."""

    overlength_from_tokens: Count | None = None
    """Episode length, all tokens, from which the reward is lowered (soft over-length punishment, arXiv 2503.14476).
    null: never."""

    overlength_full_tokens: Count | None = None
    """Episode length at which the whole overlength_penalty is taken; in between it grows linearly."""

    overlength_penalty: Positive = 1.0
    """Reward taken from an episode of overlength_full_tokens or more."""

    surrogate: Surrogate = Surrogate.ppo
    """What is maximised."""

    anchor: Anchor = Anchor.proximal
    """The policy whose ratio is bounded."""

    clip_low: PositiveShare = 0.2
    """Lower clip of the policy ratio: 1 - clip_low."""

    clip_high: Positive = 0.28
    """Upper clip: 1 + clip_high; above clip_low keeps exploration (clip-higher, arXiv 2503.14476)."""

    dual_clip: Factor | None = None
    """With surrogate ppo or gspo: tokens of negative advantage count at most this often, usually 3 (arXiv 1912.09729).
    null: no such bound."""

    tv_bound: PositiveShare = 0.2
    """With surrogate dppo_tv: largest change of a token's probability."""

    tv_penalty: NonNegative = 1e-3
    """With surrogate dppo_tv: weight of the squared log-ratio."""

    importance: Importance = Importance.token
    """Weight of old tokens."""

    importance_cap: Positive = 2.0
    """Cap of that weight: 2 for tokens, 2 to 10 for sequences."""

    token_ratio_min: Positive | None = None
    """Tokens with a lower ratio are rejected: 0.5 for masked importance sampling and IcePop. null: no bound."""

    token_ratio_max: Positive | None = None
    """Tokens with a higher ratio are rejected: 2 for masked importance sampling, 5 for IcePop. null: no bound."""

    sequence_ratio_min: Positive | None = None
    """Episodes whose product of ratios is lower are rejected. null: no bound."""

    sequence_ratio_max: Positive | None = None
    """Episodes whose product of ratios is higher are rejected, 2 to 10. null: no bound."""

    geometric_ratio_min: Positive | None = None
    """Episodes whose geometric mean ratio is lower are rejected: 0.99 at equal weights. null: no bound."""

    geometric_ratio_max: Positive | None = None
    """Episodes whose geometric mean ratio is higher are rejected: 1.01 at equal weights. null: no bound."""

    veto_ratio: PositiveShare | None = None
    """One token of a lower ratio rejects its whole episode: 1e-4. null: no veto."""

    down_weight_divergence: Positive | None = None
    """Groups whose mean k3 divergence from proximal is higher, in nats, count by this over their divergence. null:
    none."""

    truncate_divergence: Positive | None = None
    """Groups of a higher divergence have their importance weights capped at 1, too. null: none."""

    drop_divergence: Positive | None = None
    """Groups of a higher divergence are not trained on. null: none."""

    kl_coef: NonNegative = 0.0
    """Weight of the KL penalty to the starting policy. 0 loads no reference model."""

    kl_estimator: KlEstimator = KlEstimator.k3
    """How the penalty is estimated."""

    aggregation: Aggregation = Aggregation.token_mean
    """How losses of tokens become one."""

    aggregation_tokens: Count | None = None
    """With aggregation constant: sampled tokens by which each episode's sum is divided, such as the most it can
    have."""

    updates_per_step: Count = 1
    """Optimizer updates per batch; the batch is split by groups. One step stays one policy version."""

    @property
    def bands_groups(self) -> bool:
        """Whether groups are judged by their divergence, which takes a forward pass of its own."""
        bands = (self.down_weight_divergence, self.truncate_divergence, self.drop_divergence)
        return any(band is not None for band in bands)


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    world_size: Count = 2
    """torchrun ranks."""

    lr: Positive = 1e-3
    """Peak learning rate of AdamW."""

    lr_warmup_steps: CountOrZero = 5
    """Steps of linear warm-up from 0."""

    lr_schedule: LrSchedule = LrSchedule.constant
    """The learning rate after the warm-up, until schedule.steps."""

    lr_final_share: Share = 0.0
    """Share of lr that a falling schedule reaches at the last step."""

    weight_decay: NonNegative = 0.0
    """AdamW weight decay."""

    beta1: Decay = 0.9
    """AdamW first moment decay."""

    beta2: Decay = 0.95
    """AdamW second moment decay."""

    grad_clip: Positive = 1.0
    """Largest global gradient norm."""

    micro_batch_tokens: Count = 2048
    """Padded tokens of one forward pass on one rank; more tokens are split, longest episodes first, and accumulated.
    What fits a CPU's cache is fastest there (1000 to 2000 for the tiny model); GPUs want more."""

    activation_checkpointing: bool = False
    """Whether layers are computed again in the backward pass instead of keeping their activations: less memory, about a
    third more time."""

    lora_rank: CountOrZero = 0
    """Rank of low-rank adapters (arXiv 2106.09685); only they are trained, and published weights have them merged in.
    0 trains every weight."""

    lora_alpha: Positive = 32.0
    """The adapters' product is scaled by lora_alpha / lora_rank."""

    lora_targets: list[Text] = field(
        default_factory=lambda: ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    )
    """Last names of the linear layers that get adapters."""

    mismatch_limit: Positive = 0.1
    """Nats of difference between the engine's and the trainer's log-prob over which a token counts in
    mismatch_over_share."""

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
