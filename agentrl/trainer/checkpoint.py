"""Checkpoints: model and optimizer by torch.distributed.checkpoint, and the StepDone that reports the step.

A checkpoint is what makes a step happen once: it holds the applied batch's id, and the message to send again should
the trainer have died before the controller heard of it. Randomness needs no entry: each step seeds itself from the
run's seed and its number. A checkpoint loads on any world size. Frozen weights are not in it: they are the start's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from agentrl.trainer import durable
from agentrl.wire import StepDone

_RECORD = "step.json"


def write_state(final: Path, model: nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> None:
    """Write the sharded state under `final`'s temporary name. Collective."""
    folder = durable.temporary(final)
    if rank == 0:
        durable.fresh(folder)  # other ranks write only after rank 0 has joined the planning
    save(_state(model, optimizer), checkpoint_id=folder)


def seal(final: Path, done: StepDone) -> None:
    """Add the record and make the checkpoint appear. Rank 0 only, after `write_state`."""
    record = msgspec.json.format(msgspec.json.encode(done))
    (durable.temporary(final) / _RECORD).write_bytes(record)
    durable.commit(final)


def load_state(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load into the model and optimizer, which may be sharded over another number of ranks. Collective."""
    state = _state(model, optimizer)
    load(state, checkpoint_id=folder)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=StateDictOptions(strict=all(p.requires_grad for p in model.parameters())),
    )


def read_record(folder: Path) -> StepDone:
    """The StepDone of the step that made this checkpoint."""
    return msgspec.json.decode((folder / _RECORD).read_bytes(), type=StepDone)


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    model_state, optimizer_state = get_state_dict(model, optimizer, options=StateDictOptions(ignore_frozen_params=True))
    return {"model": model_state, "optimizer": optimizer_state}
