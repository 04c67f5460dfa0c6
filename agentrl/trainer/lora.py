"""Low-rank adapters (LoRA, arXiv 2106.09685): W x + (alpha / rank) B A x with W frozen, B zero at the start.

A layer keeps its name and its weight, so state dicts, sharding and publication see the model that they know, and two
small tensors more. Axes: I inputs, O outputs, R rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from agentrl.errors import UserError


class LoraLinear(nn.Linear):
    """A linear layer whose weight is frozen, with its adapter."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float, generator: torch.Generator) -> None:
        super().__init__(base.in_features, base.out_features, bias=base.bias is not None, device="meta")
        self.weight, self.bias = base.weight, base.bias
        self.scale = alpha / rank
        self.lora_a_RI = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_b_OR = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a_RI, a=math.sqrt(5), generator=generator)

    def forward(self, inputs: Tensor) -> Tensor:
        adapted = functional.linear(functional.linear(inputs, self.lora_a_RI), self.lora_b_OR)
        return super().forward(inputs) + self.scale * adapted


def add_adapters(model: nn.Module, *, rank: int, alpha: float, targets: Sequence[str]) -> None:
    """Freeze the model and give its linear layers with these last names adapters. Raises UserError if there is none."""
    model.requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if name in targets and isinstance(child, nn.Linear)
    ]
    if not found:
        raise UserError(
            f"trainer.lora_targets: the model has no linear layer named {', '.join(targets)}",
            hint="name the last part of its layers' names, such as q_proj",
        )
    for parent, name, child in found:
        setattr(parent, name, LoraLinear(child, rank, alpha, generator))


def merged(model: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The full state dict of `model` as one without adapters: their products are in the weights."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, LoraLinear)}
    result = {name: tensor for name, tensor in state.items() if not name.endswith(("lora_a_RI", "lora_b_OR"))}
    for name, layer in layers.items():
        product_OI = state[f"{name}.lora_b_OR"] @ state[f"{name}.lora_a_RI"]
        result[f"{name}.weight"] = state[f"{name}.weight"] + layer.scale * product_OI
    return result
