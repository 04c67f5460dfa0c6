"""The starting weights of a run: a folder of the user's, or a recipe's product. Importable without torch.

A recipe runs in a process of its own (`python -m agentrl.model --job FILE`), because it needs torch and the
controller never imports that.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import msgspec

from agentrl.errors import UserError
from agentrl.model.config import ModelConfig, Recipe
from agentrl.rollout.chat import Chat

_ORIGIN = "recipe.json"  # in a made folder: what it was made from


class PrepareJob(msgspec.Struct, frozen=True, kw_only=True):
    """Controller -> model process, as a JSON file."""

    config: ModelConfig
    seed: int
    out: str
    """Absolute folder that the recipe makes; its parent exists or is created."""
    threads: int = 1
    """OMP threads."""


def prepare_model(config: ModelConfig, seed: int, out: Path, report: Callable[[str], None] = print) -> Path:
    """Folder with the starting weights in Hugging Face layout: `config.path`, checked, or `out`, made by the recipe.

    `out` appears complete or not at all; one that was made from the same recipe and seed is kept. The same arguments
    give the same bytes on the same machine. `report` gets lines of progress. Raises UserError for a bad folder.
    """
    if config.recipe is Recipe.none:
        return check_folder(config)
    origin = json.dumps(_origin(config, seed), indent=2) + "\n"
    made_from = out / _ORIGIN
    if not (made_from.is_file() and made_from.read_text(encoding="utf-8") == origin):
        _make_tiny(config, seed, out, origin, report)
    return out


def check_folder(config: ModelConfig) -> Path:
    """The absolute folder `config.path`, if it holds a model that the engine, the trainer and Chat can load."""
    if config.path is None:
        raise UserError("model.path is not set", hint="give a folder in Hugging Face layout, or model.recipe=tiny")
    folder = Path(config.path).absolute()
    if not folder.is_dir():
        raise UserError(f"model.path: {folder} is not a folder", hint="it must hold config.json and *.safetensors")
    missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    if not any(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise UserError(f"model.path: {folder} has no {', '.join(missing)}", hint="Hugging Face layout is needed")
    return folder


def _origin(config: ModelConfig, seed: int) -> dict[str, object]:
    settings = {name: value for name, value in asdict(config).items() if name.startswith("warmup_")}
    return {"recipe": config.recipe.value, "seed": seed, **settings}


def _make_tiny(config: ModelConfig, seed: int, out: Path, origin: str, report: Callable[[str], None]) -> None:
    import torch  # heavy: only the recipe's own process pays for it
    from transformers.utils import logging

    from agentrl.model import tiny

    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    torch.manual_seed(seed)
    tokenizer = tiny.build_tokenizer()
    tiny.save_tokenizer(tokenizer, partial)
    model = tiny.build_model(tokenizer)
    tiny.warm_up(model, Chat.load(partial), tokenizer, config, seed=seed, report=report)
    logging.disable_progress_bar()
    model.save_pretrained(partial)
    (partial / _ORIGIN).write_text(origin, encoding="utf-8")
    shutil.rmtree(out, ignore_errors=True)
    partial.rename(out)
