"""In which order tasks are launched: a function of the seed and the launch number, so only a cursor is saved."""

from __future__ import annotations

import random
from functools import lru_cache


@lru_cache(maxsize=4)
def _permutation(num_tasks: int, seed: int, pass_number: int) -> tuple[int, ...]:
    order = list(range(num_tasks))
    random.Random(f"{seed}:{pass_number}").shuffle(order)
    return tuple(order)


def task_index(seq: int, *, num_tasks: int, seed: int) -> int:
    """Index of the task of launch number `seq`: every pass over the data set is a new shuffle."""
    return _permutation(num_tasks, seed, seq // num_tasks)[seq % num_tasks]
