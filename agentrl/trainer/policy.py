"""A causal language model, sharded over the ranks, that yields the log-probs of sampled tokens.

Axes: B rows of a micro-batch, T positions, N sampled tokens of the micro-batch, H hidden size, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.nn import functional

from agentrl.trainer.batching import MicroBatch
from agentrl.trainer.config import TrainerConfig
from agentrl.trainer.loading import load_model


class Policy:
    """Wraps any Hugging Face causal LM. `model` is what gets optimised, saved and exported."""

    def __init__(self, model: Any, temperature: float) -> None:
        self.model: nn.Module = model
        self.vocab_size: int = model.config.get_text_config().vocab_size
        self._temperature = temperature
        self._predictors: tuple[Tensor, Tensor] | None = None
        model.get_output_embeddings().register_forward_pre_hook(self._keep_predictors)

    @staticmethod
    def load(folder: Path, mesh: DeviceMesh, temperature: float, trainer: TrainerConfig | None = None) -> Policy:
        """Read a Hugging Face folder as float32, sharded over `mesh`, with what `trainer` asks for. Collective."""
        return Policy(load_model(folder, mesh, trainer), temperature)

    def logprobs(self, micro_batch: MicroBatch) -> Tensor:
        """float32[N]: log-prob of each sampled token at the sampling temperature, with gradient where it is enabled.

        Rows are padded on the right and attention is causal, so no mask is needed. Logits are computed only where a
        sampled token is predicted: the vocabulary is the widest axis, and most tokens are prompts and observations.
        """
        self._predictors = (torch.from_numpy(micro_batch.rows_N), torch.from_numpy(micro_batch.columns_N))
        logits_1NV = self.model(input_ids=torch.from_numpy(micro_batch.ids_BT), use_cache=False).logits
        logits_NV = logits_1NV.squeeze(0) / self._temperature
        return -functional.cross_entropy(logits_NV, torch.from_numpy(micro_batch.targets_N), reduction="none")

    @torch.no_grad()
    def best_logprobs(self, ids: list[int], ends: list[int]) -> list[float]:
        """Log-prob of the most probable token after each prefix `ids[:end]`, at temperature 1. Collective."""
        self._predictors = (torch.zeros(len(ends), dtype=torch.long), torch.tensor(ends) - 1)
        logits_1NV = self.model(input_ids=torch.tensor([ids]), use_cache=False).logits
        return torch.log_softmax(logits_1NV.squeeze(0).float(), dim=-1).max(dim=-1).values.tolist()

    def synchronise_gradients(self, on: bool) -> None:
        """Whether the next backward pass reduces gradients over ranks, or only accumulates them on this one."""
        if isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(on)

    def _keep_predictors(self, _head: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        """Before the output layer: [B, T, H] to [1, N, H]. A hook, so that each architecture scales its own logits."""
        assert self._predictors is not None, "the model ran outside Policy.logprobs"
        (hidden_BTH,) = inputs
        rows_N, columns_N = self._predictors
        self._predictors = None
        return (hidden_BTH[rows_N, columns_N].unsqueeze(0),)
