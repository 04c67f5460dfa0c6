"""Reading a folder's safetensors, and refusing what cannot be served, before anything that serves is touched."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from agentrl.wire import DELTA_BASE


class WeightsError(ValueError):
    """Weights that cannot be loaded; the message says which and why."""


def read_safetensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a Hugging Face folder: model.safetensors, or the shards that its index names.

    They are views of the mapped files: copy what outlives the load, or a file that changes changes the model.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not folder.is_dir():
        raise WeightsError(f"no such folder: {folder}")
    tensors: dict[str, torch.Tensor] = {}
    for file in _files(folder):
        try:
            tensors.update(load_file(file))
        except (OSError, SafetensorError) as error:
            raise WeightsError(f"cannot read {file}: {error}") from error
    return tensors


def delta_base(folder: Path) -> int | None:
    """Version that what is in a folder is a change to; None: the folder holds a whole model. Raises WeightsError."""
    from safetensors import SafetensorError, safe_open

    path = _files(folder)[0]
    if not path.is_file():
        return None  # whoever loads the model says what is missing
    try:
        with safe_open(path, framework="pt") as file:
            base = (file.metadata() or {}).get(DELTA_BASE)
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"cannot read {folder}: {error}") from error
    return None if base is None else int(base)


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return [folder / "model.safetensors"]
    try:
        names = set(json.loads(index.read_text())["weight_map"].values())
        return [folder / name for name in sorted(names)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"cannot read {index}: {error!r}") from error


def check_tensors(
    tensors: Mapping[str, torch.Tensor], expected: Mapping[str, tuple[int, ...]], optional: frozenset[str] = frozenset()
) -> None:
    """Raise WeightsError unless exactly the expected names are there (or optional), well-shaped, of floating point."""
    missing = [name for name in expected if name not in tensors]
    if missing:
        raise WeightsError(f"missing tensors: {_some(missing)}")
    unknown = [name for name in tensors if name not in expected and name not in optional]
    if unknown:
        raise WeightsError(f"tensors that this model does not have: {_some(unknown)}")
    for name, shape in expected.items():
        if tuple(tensors[name].shape) != shape:
            raise WeightsError(f"{name} has shape {tuple(tensors[name].shape)}, expected {shape}")
        if not tensors[name].is_floating_point():
            raise WeightsError(f"{name} has dtype {tensors[name].dtype}, expected floating point")


def check_finite(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise WeightsError at the first tensor with a NaN or an infinity."""
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise WeightsError(f"{name} has values that are not finite")


def _some(names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
