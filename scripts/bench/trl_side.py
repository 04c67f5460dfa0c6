"""TRL's side of trainer_vs_trl.py, run by .venv-trl's Python; prints one line of JSON. Does not know agentrl."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def padded(rows: list[np.ndarray], side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of ids as a rectangle, and where it is not padding."""
    width = max(map(len, rows))
    ids, mask = np.zeros((len(rows), width), np.int64), np.zeros((len(rows), width), np.int64)
    for place, row in enumerate(rows):
        span = slice(width - len(row), width) if side == "left" else slice(0, len(row))
        ids[place, span], mask[place, span] = row, 1
    return torch.from_numpy(ids), torch.from_numpy(mask)


def recorded_batch(path: Path) -> dict[str, torch.Tensor]:
    """What TRL's generation would return, of multi-turn episodes: observations are masked by tool_mask."""
    data = np.load(path)
    rewards = data["rewards"]
    count = rewards.size
    prompts = [int(data[f"prompt{row}"]) for row in range(count)]
    prompt_ids, prompt_mask = padded([data[f"ids{row}"][: prompts[row]] for row in range(count)], "left")
    completion_ids, completion_mask = padded([data[f"ids{row}"][prompts[row] :] for row in range(count)], "right")
    tool_mask, _ = padded([data[f"mask{row}"][prompts[row] :] for row in range(count)], "right")
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "tool_mask": tool_mask,
        "advantages": torch.from_numpy(rewards - rewards.mean(axis=1, keepdims=True)).flatten(),
        "num_items_in_batch": (completion_mask * tool_mask).sum(),
    }


class Stopwatch(TrainerCallback):
    """Wall and CPU seconds of each step: forward, backward, clipping, optimizer."""

    def __init__(self) -> None:
        self.wall_s: list[float] = []
        self.cpu_s: list[float] = []
        self._started = (0.0, 0.0)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._started = (time.perf_counter(), time.process_time())

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.wall_s.append(time.perf_counter() - self._started[0])
        self.cpu_s.append(time.process_time() - self._started[1])


def main(folder: Path, rows_per_pass: int, steps: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    batch = recorded_batch(folder / "batch.npz")
    count, group_size = len(batch["advantages"]), np.load(folder / "batch.npz")["rewards"].shape[1]

    class Recorded(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> dict[str, torch.Tensor]:
            return dict(batch)

    config = GRPOConfig(
        output_dir=str(folder / "trl"),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=rows_per_pass,
        gradient_accumulation_steps=count // rows_per_pass,
        num_generations=int(group_size),
        max_steps=steps,
        learning_rate=1e-6,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        loss_type="dapo",
        epsilon=0.2,
        epsilon_high=0.28,
        beta=0.0,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    stopwatch = Stopwatch()
    trainer = Recorded(
        model=str(folder),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "cat note"}] * count),
        processing_class=AutoTokenizer.from_pretrained(folder),
        callbacks=[stopwatch],
    )
    assert next(trainer.model.parameters()).dtype == torch.float32
    before_mib = peak_mib()
    trainer.train()
    norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    return {
        "wall_s": stopwatch.wall_s,
        "cpu_s": stopwatch.cpu_s,
        "grad_norm": float(norms[0]),
        "before_mib": before_mib,
        "peak_mib": peak_mib(),
    }


def peak_mib() -> float:
    """Largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    _, _, folder_, rows_, steps_ = sys.argv
    print(json.dumps(main(Path(folder_), int(rows_), int(steps_))))
