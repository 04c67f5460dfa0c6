"""Scores an episode's tokens under a checkpoint: `python -m agentrl.trainer.score JOB`, a process of its own.

Reads a JSON file with `model_path`, `sequences` (each with `ids` and `mask`), `temperature` and `out`; writes to `out`
the log-prob of each token whose mask is 1, in order, as a JSON list. In float32, as the trainer computes them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch


def score(model_path: str, sequences: list[dict[str, list[int]]], temperature: float) -> list[float]:
    """Log-prob of each sampled token given all before it in its sequence, at the sampling temperature."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32, local_files_only=True).eval()
    return [value for one in sequences for value in _score(model, one["ids"], one["mask"], temperature)]


def _score(model: Any, ids: list[int], mask: list[int], temperature: float) -> list[float]:
    sampled = [index for index, one in enumerate(mask) if one and index > 0]
    if not sampled:
        return []
    with torch.no_grad():
        logits_TV = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    logprobs_NV = torch.log_softmax(logits_TV[[index - 1 for index in sampled]] / temperature, dim=-1)
    targets_N = torch.tensor([ids[index] for index in sampled])
    return [float(value) for value in logprobs_NV.gather(1, targets_N[:, None]).squeeze(1)]


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    out = Path(job.pop("out"))
    out.write_text(json.dumps(score(**job)))


if __name__ == "__main__":
    main()
