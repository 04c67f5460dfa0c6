"""From a folder of weights to a model that is ready to train: read once, adapted, sharded over the ranks.

Rank 0 reads the folder; the others build the same model without values and get their shards from it, so that a host
of many ranks holds one full copy, and only until each has its part.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from agentrl.trainer.config import TrainerConfig
from agentrl.trainer.lora import add_adapters


def load_model(folder: Path, mesh: DeviceMesh, trainer: TrainerConfig | None) -> Any:
    """A Hugging Face causal LM in float32 on every rank of `mesh`. Collective.

    Dropout is off: ratios compare one function. `trainer` asks for adapters and activation checkpointing; None is a
    model that is only evaluated.
    """
    model = _read(folder) if not mesh.get_rank() else _empty(folder)
    if trainer and trainer.lora_rank:
        add_adapters(model, rank=trainer.lora_rank, alpha=trainer.lora_alpha, targets=trainer.lora_targets)
    if trainer and trainer.activation_checkpointing:
        for layer in _layers(model):
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    if mesh.size() > 1:  # one rank has nothing to shard, and is a sixth faster without the hooks (tiny model)
        _shard(model, mesh)
    return model


def _read(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
    ).eval()


def _empty(folder: Path) -> Any:
    """The model that `_read` gives, with whatever is in memory: pages never written to take no room."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa").eval()
    model = model.to_empty(device="cpu")
    model.tie_weights()  # to_empty gives each name a tensor of its own
    return model


def _layers(model: Any) -> list[nn.Module]:
    """The decoder layers."""
    names = set(model._no_split_modules or ())
    return [module for module in model.modules() if type(module).__name__ in names]


def _shard(model: Any, mesh: DeviceMesh) -> None:
    """FSDP2: each decoder layer is one unit of gathering, the rest (embeddings, output layer) is the root's."""
    full = dict(model.state_dict()) if not mesh.get_rank() else {}
    buffers = [buffer for _, buffer in sorted(model.named_buffers())]
    for layer in _layers(model):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    set_model_state_dict(model, full, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    for buffer in buffers:  # some are in no state dict, such as the frequencies of rotary embeddings
        dist.broadcast(buffer, src=0)
