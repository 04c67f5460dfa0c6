"""Published weights: a folder in Hugging Face layout that any engine loads."""

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
from agentrl.wire import PROBE_FILE, Probe

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.gguf", "*.pt", "*.pth")


def export(final: Path, model: nn.Module, source: Path, rank: int, probe: Probe) -> None:
    """Write `final` from the model's weights, the probe, and everything but the weights of `source`. Collective; rank 0
    writes."""
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank:
        return
    folder = durable.fresh(durable.temporary(final))
    for path in source.iterdir():
        if path.is_file() and path.name != "config.json" and not any(path.match(pattern) for pattern in _WEIGHTS):
            shutil.copyfile(path, folder / path.name)
    config = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(_as_float32(config), indent=2))
    save_file(
        _without_tied(model, merged(model, _tensors(state))), folder / "model.safetensors", metadata={"format": "pt"}
    )
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
