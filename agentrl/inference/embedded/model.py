"""What the worker needs of a model, and which implementation serves a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from agentrl.errors import UserError
from agentrl.inference.embedded.batch import Batch
from agentrl.inference.embedded.kv import Geometry, KvCache


class CausalModel(Protocol):
    """A causal language model whose KV cache lives outside it."""

    geometry: Geometry
    vocab_size: int

    def load(self, folder: Path) -> None:
        """Serve the weights in `folder`. Raises WeightsError, and then still serves what it had."""
        ...

    def change(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Serve these instead of what has the same names. Raises WeightsError, and then still serves what it had."""
        ...

    def named(self) -> dict[str, torch.Tensor]:
        """The weights that serve, by their names in a folder, tied ones once; not to be written to.

        Empty if they were released.
        """
        ...

    def release(self) -> None:
        """Give up the weights; `load` brings them back."""
        ...

    def forward(self, batch: Batch, kv: KvCache) -> torch.Tensor:
        """Logits float32[B, vocab] after the sampled tokens; writes the batch's keys and values to `kv`."""
        ...


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of the model's folder. Raises UserError."""
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror}", hint="a model folder has config.json and safetensors"
        ) from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a JSON object")
    return content


def open_model(folder: Path, *, dtype: torch.dtype, context_length: int) -> CausalModel:
    """The model in `folder`, weights loaded. Raises UserError if it cannot be served."""
    from agentrl.inference.embedded.llama import LlamaModel
    from agentrl.inference.embedded.weights import WeightsError

    config = read_json(folder / "config.json")
    longest = config.get("max_position_embeddings")
    if isinstance(longest, int) and context_length > longest:
        raise UserError(
            f"context length {context_length} is over the model's {longest}", hint="lower inference.context_length"
        )
    try:
        if LlamaModel.supports(config):
            model: CausalModel = LlamaModel(config, dtype=dtype, context_length=context_length)
        else:
            from agentrl.inference.embedded.hf import TransformersModel

            model = TransformersModel(folder, dtype=dtype, context_length=context_length)
        model.load(folder)
    except WeightsError as error:
        raise UserError(f"cannot serve {folder}: {error}") from error
    return model


def stop_token_ids(folder: Path) -> frozenset[int]:
    """End-of-sequence ids that config.json and generation_config.json name."""
    found: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        if (folder / name).exists():
            ids = read_json(folder / name).get("eos_token_id")
            found.update(ids if isinstance(ids, list) else [] if ids is None else [ids])
    return frozenset(found)
