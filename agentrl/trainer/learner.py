"""One training step: proximal log-probs, optimizer updates, metrics. Collective: ranks call it with equal batches."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from agentrl.trainer.batching import FlatBatch, MicroBatch, collate, plan_ranks, split_updates
from agentrl.trainer.config import AlgorithmConfig, TrainerConfig
from agentrl.trainer.corrections.group_bands import Band, GroupBand, band_counts, decide, group_divergences
from agentrl.trainer.job import ExitCode, TrainerExit
from agentrl.trainer.losses import LossInputs, LossTerms, largest_denominator, loss_terms
from agentrl.trainer.mismatch import log_ratio
from agentrl.trainer.policy import Policy
from agentrl.trainer.schedule import learning_rate
from agentrl.trainer.step_metrics import UpdateOutcome, step_metrics
from agentrl.trainer.world import World

_NAMED_EPISODES = 8


def make_optimizer(policy: Policy, config: TrainerConfig) -> torch.optim.AdamW:
    """AdamW over the weights that are trained."""
    return torch.optim.AdamW(
        [p for p in policy.model.parameters() if p.requires_grad],
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
        total_steps: int,
    ) -> None:
        self._world = world
        self._policy = policy
        self._reference = reference
        self._optimizer = optimizer
        self._trainer = trainer
        self._algorithm = algorithm
        self._total_steps = total_steps
        self._forward_s = 0.0

    def step(self, batch: FlatBatch, step: int) -> dict[str, float]:
        """Make policy version `step` from version `step - 1`; returns metrics (docs/metrics.md), equal on every rank.

        Raises TrainerExit(BAD_BATCH) if a loss or the gradient is not finite; the weights in memory are then not to
        be used, those on disk are those of version `step - 1`.
        """
        self._forward_s = 0.0
        lr = learning_rate(step, self._trainer, self._total_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        updates = split_updates([t.group for t in batch.trajectories], self._algorithm.updates_per_step)
        updates = [rows for rows in updates if len(batch.tokens_of(rows))]
        judged = self._algorithm.bands_groups
        inputs = self._inputs(batch, updates, all_proximal=judged)
        bands = self._judge(batch, inputs) if judged else {}
        if judged:
            inputs = _with_bands(inputs, batch, bands)
            updates = _without_dropped(updates, batch, bands)
        outcomes = [
            self._update(batch, rows, inputs, fill_proximal=not judged and not place)
            for place, rows in enumerate(updates)
        ]
        metrics = step_metrics(batch, inputs, outcomes, version=step - 1, mismatch_limit=self._trainer.mismatch_limit)
        return metrics | {"lr": lr, "forward_s": self._forward_s} | (band_counts(bands) if judged else {})

    def _inputs(self, batch: FlatBatch, updates: list[list[int]], *, all_proximal: bool) -> LossInputs:
        """Log-probs under the weights at the start of the step, but for the first update's: it fills in its own,
        unless they are needed before it."""
        everything = [row for rows in updates for row in rows]
        ahead = everything if all_proximal else [row for rows in updates[1:] for row in rows]
        return LossInputs(
            proximal_N=self.evaluate(self._policy, batch, ahead),
            behaviour_N=torch.from_numpy(batch.behaviour_N),
            advantages_N=torch.from_numpy(batch.advantages_N),
            episodes_N=torch.from_numpy(batch.owners),
            reference_N=self.evaluate(self._reference, batch, everything) if self._reference else None,
        )

    def _judge(self, batch: FlatBatch, inputs: LossInputs) -> dict[str, GroupBand]:
        self._check_finite(batch, torch.arange(batch.num_sampled), inputs.proximal_N, "a proximal log-prob")
        log_B = log_ratio(inputs.proximal_N.numpy(), batch.behaviour_N)
        divergences = group_divergences(log_B, batch.of_tokens([t.group for t in batch.trajectories]))
        return {group: decide(divergence, self._algorithm) for group, divergence in divergences.items()}

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

    def _update(self, batch: FlatBatch, rows: list[int], inputs: LossInputs, *, fill_proximal: bool) -> UpdateOutcome:
        """One optimizer update from these trajectories; none if all their tokens are rejected.

        The denominator is known only when every token has its log-prob: passes divide by the most that it can be, and
        the gradient is scaled by the rest at the end.
        """
        tokens_N = torch.from_numpy(batch.tokens_of(rows))
        most = largest_denominator(inputs.select(tokens_N), self._algorithm)
        current_N = self._accumulate(batch, rows, inputs, most=most, fill_proximal=fill_proximal)
        if fill_proximal:
            inputs.proximal_N[tokens_N] = current_N[tokens_N]
        terms = self._terms(current_N[tokens_N], inputs.select(tokens_N))
        self._check_finite(batch, tokens_N, terms.losses_N, "the loss")
        grad_norm = 0.0
        if terms.denominator:
            grad_norm = self._clip_gradient(batch, rows, scale=most / terms.denominator)
            self._optimizer.step()
        return UpdateOutcome(tokens_N=tokens_N, terms=terms, grad_norm=grad_norm)

    def _accumulate(
        self, batch: FlatBatch, rows: list[int], inputs: LossInputs, *, most: int, fill_proximal: bool
    ) -> Tensor:
        """Leave the gradient of the update's loss sum over `most`; returns its log-probs, 0 elsewhere: float32[N].

        With `fill_proximal` the weights are still those of the step's start, so the current log-probs, without
        gradient, are the proximal ones.
        """
        current_N = torch.zeros(batch.num_sampled)
        micro_batches = self._my_micro_batches(batch, rows)
        self._optimizer.zero_grad()
        for place, micro_batch in enumerate(micro_batches, start=1):
            self._policy.synchronise_gradients(place == len(micro_batches))
            mine_N = torch.from_numpy(micro_batch.tokens_N)
            logprobs_N = self._logprobs(self._policy, micro_batch)
            current_N[mine_N] = logprobs_N.detach()
            if fill_proximal:
                inputs.proximal_N[mine_N] = logprobs_N.detach()
            terms = self._terms(logprobs_N, inputs.select(mine_N))
            # FSDP averages gradients over ranks; the loss is a sum over them.
            torch.autograd.backward((terms.losses_N * terms.shares_N).sum() * (self._world.size / most))
        return self._world.sum(current_N)

    def _terms(self, current_N: Tensor, inputs: LossInputs) -> LossTerms:
        return loss_terms(current_N, inputs, self._algorithm)

    def _check_finite(self, batch: FlatBatch, tokens_N: Tensor, values_N: Tensor, what: str) -> None:
        bad_N = tokens_N[~torch.isfinite(values_N)]
        if len(bad_N):
            episodes = batch.episodes_of(bad_N.numpy())
            raise _bad_batch(f"{what} is not finite at {len(bad_N)} tokens of {len(episodes)} episodes", episodes)

    def _clip_gradient(self, batch: FlatBatch, rows: list[int], *, scale: float) -> float:
        """Multiply the gradient by `scale`, then limit it to `grad_clip`; returns its global norm in between."""
        parameters = [p for p in self._policy.model.parameters() if p.grad is not None]
        gradients = [p.grad for p in parameters if p.grad is not None]
        if scale != 1:
            torch._foreach_mul_(gradients, scale)
        norm = get_total_norm(gradients)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        if not torch.isfinite(norm):
            episodes = list(dict.fromkeys(batch.trajectories[row].episode for row in rows))
            raise _bad_batch(f"every loss is finite but the gradient of {len(episodes)} episodes is not", episodes)
        clip_grads_with_norm_(parameters, self._trainer.grad_clip, norm)
        return float(norm)


def _with_bands(inputs: LossInputs, batch: FlatBatch, bands: dict[str, GroupBand]) -> LossInputs:
    """Inputs with each token's group's weight, and whether its importance weight is capped at 1."""
    ours = [bands.get(t.group) for t in batch.trajectories]
    weights = [band.weight if band else 0.0 for band in ours]
    truncated = [band is not None and band.band is Band.truncate for band in ours]
    owners = batch.owners
    return replace(
        inputs,
        group_weights_N=torch.from_numpy(np.asarray(weights, dtype=np.float32)[owners]),
        truncated_N=torch.from_numpy(np.asarray(truncated)[owners]),
    )


def _without_dropped(updates: list[list[int]], batch: FlatBatch, bands: dict[str, GroupBand]) -> list[list[int]]:
    """The updates' trajectories but those of dropped groups; updates that nothing is left of vanish."""
    dropped = {group for group, band in bands.items() if band.band is Band.drop}
    left = [[row for row in rows if batch.trajectories[row].group not in dropped] for rows in updates]
    return [rows for rows in left if len(batch.tokens_of(rows))]


def _bad_batch(message: str, episodes: list[str]) -> TrainerExit:
    named = ", ".join(episodes[:_NAMED_EPISODES]) + (", ..." if len(episodes) > _NAMED_EPISODES else "")
    return TrainerExit(ExitCode.BAD_BATCH, f"{message}: {named}", episodes=episodes)
