"""One training step: proximal log-probs, optimizer updates, metrics. Collective: ranks call it with equal batches."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from agentrl.trainer import mismatch
from agentrl.trainer.batching import FlatBatch, MicroBatch, collate, plan_ranks, split_updates
from agentrl.trainer.config import AlgorithmConfig, TrainerConfig
from agentrl.trainer.job import ExitCode, TrainerExit
from agentrl.trainer.losses import LossCoefficients, LossInputs, importance_weight, is_clipped, k3, token_losses
from agentrl.trainer.policy import Policy
from agentrl.trainer.world import World

_NAMED_EPISODES = 8


@dataclass(frozen=True, kw_only=True)
class UpdateOutcome:
    """What one optimizer update left to report."""

    tokens_N: Tensor
    """The update's tokens, as indices on the batch's axis N."""
    losses_N: Tensor
    """float64: loss of each of them, before the update."""
    clipped_N: Tensor
    """bool: whether the clip took their gradient."""
    grad_norm: float


def learning_rate(step: int, peak: float, warmup_steps: int) -> float:
    """Linear warm-up that reaches `peak` at step `warmup_steps`, then constant. Steps count from 1."""
    return peak * min(1.0, step / warmup_steps) if warmup_steps else peak


def make_optimizer(policy: Policy, config: TrainerConfig) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        policy.model.parameters(),
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        weight_decay=config.weight_decay,
        fused=True,
    )


class Learner:
    """Owns the optimizer; changes the policy's weights, in memory only."""

    def __init__(
        self,
        *,
        world: World,
        policy: Policy,
        reference: Policy | None,
        optimizer: torch.optim.Optimizer,
        trainer: TrainerConfig,
        algorithm: AlgorithmConfig,
    ) -> None:
        self._world = world
        self._policy = policy
        self._reference = reference
        self._optimizer = optimizer
        self._trainer = trainer
        self._algorithm = algorithm
        self._coefficients = LossCoefficients(
            clip_low=algorithm.clip_low,
            clip_high=algorithm.clip_high,
            importance_cap=algorithm.importance_cap,
            kl_coef=algorithm.kl_coef,
        )
        self._forward_s = 0.0

    def step(self, batch: FlatBatch, step: int) -> dict[str, float]:
        """Make policy version `step` from version `step - 1`; returns metrics (docs/metrics.md), equal on every rank.

        Raises TrainerExit(BAD_BATCH) if a loss or the gradient is not finite; the weights in memory are then not to
        be used, those on disk are those of version `step - 1`.
        """
        self._forward_s = 0.0
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(step, self._trainer.lr, self._trainer.lr_warmup_steps)
        updates = split_updates([t.group for t in batch.trajectories], self._algorithm.updates_per_step)
        updates = [rows for rows in updates if len(batch.tokens_of(rows))]
        inputs = self._inputs(batch, updates)
        outcomes = [self._update(batch, rows, inputs, first=not place) for place, rows in enumerate(updates)]
        return self._metrics(batch, inputs, outcomes, version=step - 1)

    def _inputs(self, batch: FlatBatch, updates: list[list[int]]) -> LossInputs:
        """Log-probs under the weights at the start of the step, but for the first update's: it fills in its own."""
        later = [row for rows in updates[1:] for row in rows]
        everything = [row for rows in updates for row in rows]
        return LossInputs(
            proximal_N=self.evaluate(self._policy, batch, later),
            behaviour_N=torch.from_numpy(batch.behaviour_N),
            advantages_N=torch.from_numpy(batch.advantages_N),
            reference_N=self.evaluate(self._reference, batch, everything) if self._reference else None,
        )

    def _my_micro_batches(self, batch: FlatBatch, rows: list[int]) -> list[MicroBatch]:
        plan = plan_ranks(rows, batch.input_lengths(), self._world.size, self._trainer.micro_batch_tokens)
        return [collate(batch, micro) for micro in plan[self._world.rank]]

    def _logprobs(self, policy: Policy, micro_batch: MicroBatch) -> Tensor:
        started = time.perf_counter()
        logprobs_N = policy.logprobs(micro_batch)
        self._forward_s += time.perf_counter() - started
        return logprobs_N

    @torch.no_grad()
    def evaluate(self, policy: Policy, batch: FlatBatch, rows: list[int]) -> Tensor:
        """float32[N] of the whole batch on every rank: log-probs of these trajectories' tokens, 0 elsewhere."""
        logprobs_N = torch.zeros(batch.num_sampled)
        if rows:
            for micro_batch in self._my_micro_batches(batch, rows):
                logprobs_N[micro_batch.tokens_N] = self._logprobs(policy, micro_batch)
            self._world.sum(logprobs_N)
        return logprobs_N

    def _update(self, batch: FlatBatch, rows: list[int], inputs: LossInputs, *, first: bool) -> UpdateOutcome:
        """One optimizer update from these trajectories. The loss is the mean over their tokens, on all ranks.

        The first update of a step computes its proximal log-probs on the way: the weights are still those of the
        step's start, so they are the current ones without gradient.
        """
        tokens_N = torch.from_numpy(batch.tokens_of(rows))
        current_N = torch.zeros(batch.num_sampled)
        micro_batches = self._my_micro_batches(batch, rows)
        self._optimizer.zero_grad()
        for place, micro_batch in enumerate(micro_batches, start=1):
            self._policy.synchronise_gradients(place == len(micro_batches))
            mine_N = torch.from_numpy(micro_batch.tokens_N)
            logprobs_N = self._logprobs(self._policy, micro_batch)
            current_N[mine_N] = logprobs_N.detach()
            if first:
                inputs.proximal_N[mine_N] = logprobs_N.detach()
            losses_N = token_losses(logprobs_N, _select(inputs, mine_N), self._coefficients)
            # FSDP averages gradients over ranks; the mean is over tokens.
            torch.autograd.backward(losses_N.sum() * (self._world.size / len(tokens_N)))
        self._world.sum(current_N)
        if first:
            inputs.proximal_N[tokens_N] = current_N[tokens_N]
        selected = _select(inputs, tokens_N)
        losses_N = token_losses(current_N[tokens_N], selected, self._coefficients).double()
        self._check_losses(batch, tokens_N, losses_N)
        grad_norm = self._clip_gradient(batch, rows)
        self._optimizer.step()
        ratio_N = torch.exp(current_N[tokens_N] - selected.proximal_N)
        clipped_N = is_clipped(
            ratio_N, selected.advantages_N, self._coefficients.clip_low, self._coefficients.clip_high
        )
        return UpdateOutcome(tokens_N=tokens_N, losses_N=losses_N, clipped_N=clipped_N, grad_norm=grad_norm)

    def _check_losses(self, batch: FlatBatch, tokens_N: Tensor, losses_N: Tensor) -> None:
        bad_N = tokens_N[~torch.isfinite(losses_N)]
        if len(bad_N):
            episodes = batch.episodes_of(bad_N.numpy())
            raise _bad_batch(f"the loss is not finite at {len(bad_N)} tokens of {len(episodes)} episodes", episodes)

    def _clip_gradient(self, batch: FlatBatch, rows: list[int]) -> float:
        """Scale the gradient to at most `grad_clip`; returns its global norm before."""
        parameters = [p for p in self._policy.model.parameters() if p.grad is not None]
        norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        if not torch.isfinite(norm):
            episodes = [batch.trajectories[row].episode for row in rows]
            raise _bad_batch(f"every loss is finite but the gradient of {len(episodes)} episodes is not", episodes)
        clip_grads_with_norm_(parameters, self._trainer.grad_clip, norm)
        return float(norm)

    def _metrics(
        self, batch: FlatBatch, inputs: LossInputs, outcomes: list[UpdateOutcome], version: int
    ) -> dict[str, float]:
        rewards = np.array([t.reward for t in batch.trajectories])
        proximal_N = inputs.proximal_N.numpy()
        metrics = {
            "loss": _mean([o.losses_N for o in outcomes]),
            "grad_norm": float(np.mean([o.grad_norm for o in outcomes])) if outcomes else 0.0,
            "lr": float(self._optimizer.param_groups[0]["lr"]),
            "reward_mean": float(rewards.mean()),
            "reward_std": float(rewards.std()),
            "entropy": -_mean([inputs.proximal_N]),
            "ratio_clipped_share": _mean([o.clipped_N for o in outcomes]),
            "importance_mean": _mean(
                [importance_weight(inputs.proximal_N, inputs.behaviour_N, self._coefficients.importance_cap)]
            ),
            "ess": mismatch.effective_sample_size(proximal_N, batch.behaviour_N),
            "num_tokens": float(sum(t.num_tokens for t in batch.trajectories)),
            "num_sampled_tokens": float(batch.num_sampled),
            "num_trajectories": float(len(batch.trajectories)),
            "forward_s": self._forward_s,
        }
        if inputs.reference_N is not None:
            metrics["kl_ref"] = _mean([k3(inputs.reference_N, inputs.proximal_N)])
        metrics |= mismatch.policy_lag(batch.versions_N, version)
        metrics |= mismatch.engine_mismatch(proximal_N, batch.behaviour_N, batch.versions_N == version)
        return metrics


def _select(inputs: LossInputs, tokens_N: Tensor) -> LossInputs:
    return LossInputs(
        proximal_N=inputs.proximal_N[tokens_N],
        behaviour_N=inputs.behaviour_N[tokens_N],
        advantages_N=inputs.advantages_N[tokens_N],
        reference_N=None if inputs.reference_N is None else inputs.reference_N[tokens_N],
    )


def _mean(parts: list[Tensor]) -> float:
    values = torch.cat(parts).double() if parts else torch.zeros(0)
    return float(values.mean()) if len(values) else 0.0


def _bad_batch(message: str, episodes: list[str]) -> TrainerExit:
    named = ", ".join(episodes[:_NAMED_EPISODES]) + (", ..." if len(episodes) > _NAMED_EPISODES else "")
    return TrainerExit(ExitCode.BAD_BATCH, f"{message}: {named}", episodes=episodes)
