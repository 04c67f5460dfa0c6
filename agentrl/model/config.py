"""Which language model is trained, and how its starting weights come about."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from agentrl.bounds import Count, Positive, Share, Text


class Recipe(Enum):
    """A model that agentrl makes itself before step 0."""

    none = "none"
    """Load `model.path`."""
    tiny = "tiny"
    """A 0.1M-parameter Llama with a word-level tokenizer, warmed up on demonstrations of the `boxes` tasks."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    recipe: Recipe = Recipe.none
    """How the starting weights are made. `none` loads `path`."""

    path: Text | None = None
    """Folder in Hugging Face layout (config.json, safetensors, tokenizer). Relative to the working directory; write
    ${here:}/... for a path relative to the YAML file. None only with a recipe."""

    warmup_steps: Count = 250
    """Supervised steps of the recipe's warm-up. Ignored, with a warning, when recipe is none."""

    warmup_batch: Count = 32
    """Demonstrations per warm-up step."""

    warmup_lr: Positive = 5e-3
    """Peak learning rate of the warm-up (AdamW, decaying)."""

    warmup_hasty_share: Share = 0.7
    """Share of the demonstrations that guess a box at once instead of reading the note first, 0 to 1. High: greedy
    decoding guesses and RL has to discover reading. Near 1 nothing teaches how to use a note that was read."""
