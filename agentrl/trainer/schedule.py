"""The learning rate of a step."""

from __future__ import annotations

import math

from agentrl.trainer.config import LrSchedule, TrainerConfig


def learning_rate(step: int, config: TrainerConfig, total_steps: int) -> float:
    """Linear warm-up that reaches `lr` at step `lr_warmup_steps`, then the schedule. Steps count from 1.

    A falling schedule reaches `lr` x `lr_final_share` at `total_steps` and stays there: a resumed run may be longer.
    """
    if step < config.lr_warmup_steps:
        return config.lr * step / config.lr_warmup_steps
    falling = max(1, total_steps - config.lr_warmup_steps)
    progress = min(1.0, max(0, step - config.lr_warmup_steps) / falling)
    if config.lr_schedule is LrSchedule.constant:
        remaining = 1.0
    elif config.lr_schedule is LrSchedule.linear:
        remaining = 1 - progress
    else:
        remaining = (1 + math.cos(math.pi * progress)) / 2
    return config.lr * (config.lr_final_share + (1 - config.lr_final_share) * remaining)
