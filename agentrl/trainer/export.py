"""The folder of a version: its weights in Hugging Face layout, for any engine, and the trainer's word on them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from agentrl.trainer import durable
from agentrl.trainer.lora import merged
from agentrl.wire import DELTA_BASE, PROBE_FILE, Probe

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.gguf", "*.pt", "*.pth")


def full_weights(model: nn.Module, rank: int) -> dict[str, Tensor]:
    """The whole model by the names of Hugging Face, adapters merged, tied tensors once; on rank 0, elsewhere nothing.

    Collective. With one rank some tensors are the model's own: they change with the next update.
    """
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank:
        return {}
    return _without_tied(model, merged(model, _tensors(state)))


def write_folder(final: Path, source: Path, probe: Probe, weights: Mapping[str, Tensor], base: int | None) -> None:
    """Make `final` appear: the probe, and with `weights` these and everything but the weights of `source`.

    `base`: the version that these weights are a change to; None: they are all.
    """
    folder = durable.fresh(durable.temporary(final))
    if weights:
        for path in source.iterdir():
            if path.is_file() and path.name != "config.json" and not any(path.match(pattern) for pattern in _WEIGHTS):
                shutil.copyfile(path, folder / path.name)
        config = json.loads((source / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(_as_float32(config), indent=2))
        metadata = {"format": "pt"} if base is None else {"format": "pt", DELTA_BASE: str(base)}
        save_file(dict(weights), folder / "model.safetensors", metadata=metadata)
    (folder / PROBE_FILE).write_bytes(msgspec.json.encode(probe))
    durable.commit(final)


def _tensors(state: Mapping[str, object]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def _without_tied(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tied tensors once, under the name that the model registers first, as Hugging Face saves them."""
    kept = {name for name, _ in model.named_parameters()}
    tied = {name for name, _ in model.named_parameters(remove_duplicate=False)} - kept
    return {name: t.contiguous() for name, t in state.items() if name not in tied}


def _as_float32(config: dict[str, object]) -> dict[str, object]:
    """Of the tensors written here; the start model may have been stored in bf16, and engines follow the config."""
    dtype = {key: "float32" for key in ("dtype", "torch_dtype") if key in config}
    return config | (dtype or {"dtype": "float32"})
