"""TRL's side of losses_vs_trl.py, run by .venv-trl's Python: GRPOTrainer._compute_loss on given log-probs.

Reads ARRAYS (npz) and a list of settings of GRPOConfig as JSON from standard input; prints one line of JSON, for each
the loss and its gradient. Does not know agentrl.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer


def answer(model: Path, arrays: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Loss and gradient of TRL's loss under these settings, all episodes in one pass."""
    current = torch.tensor(arrays["current"], requires_grad=True)
    count, width = current.shape

    class Given(GRPOTrainer):
        def _get_per_token_logps_and_entropies(self, *_: Any, **__: Any) -> Any:
            return current, torch.zeros_like(current), None

    with tempfile.TemporaryDirectory() as output:
        config = GRPOConfig(
            output_dir=output,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=count,
            num_generations=int(arrays["group_size"]),
            max_completion_length=width,
            report_to=[],
            **settings,
        )
        trainer = Given(
            model=str(model),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=config,
            train_dataset=Dataset.from_list([{"prompt": "cat note"}] * count),
            processing_class=AutoTokenizer.from_pretrained(model),
        )
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    mask = torch.tensor(arrays["mask"])
    loss = trainer._compute_loss(
        trainer.model,
        {
            "prompt_ids": torch.ones(count, 1, dtype=torch.long),
            "prompt_mask": torch.ones(count, 1, dtype=torch.long),
            "completion_ids": torch.ones(count, width, dtype=torch.long),
            "completion_mask": mask,
            "advantages": torch.tensor(arrays["advantages"]),
            "old_per_token_logps": torch.tensor(arrays["proximal"]),
            "ref_per_token_logps": torch.tensor(arrays["reference"]),
            "num_items_in_batch": mask.sum(),
        },
    )
    loss.backward()
    assert current.grad is not None
    return {"loss": loss.item(), "gradient": current.grad.tolist()}


if __name__ == "__main__":
    _, model_, arrays_ = sys.argv
    given = np.load(arrays_)
    print(json.dumps([answer(Path(model_), given, settings) for settings in json.load(sys.stdin)]))
