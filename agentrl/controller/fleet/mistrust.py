"""Why an engine's log-probs are not the trainer's. Pure.

Three causes are told apart, each by evidence of its own: an engine that kept old weights agrees with what the trainer
said of those; one that computes in a coarser number format says so, and is off by no more than the format explains;
anything else has other weights than it was given.
"""

from __future__ import annotations

from agentrl.controller.fleet.publication import TOLERANCES
from agentrl.inference.config import Dtype

_COARSE = ("bfloat16", "float16", "half")


def cause(difference: float, *, older: tuple[int, float] | None, dtype: str | None, tolerance: float) -> str:
    """In words. `difference`: from what the trainer says of the weights that it was given, in log-probs.

    `older`: the version before, and the difference from what the trainer said of that; None: not known. `dtype`: the
    number format that the engine says it computes in; None: not told.
    """
    if older is not None and older[1] <= tolerance:
        return f"stale, these are the weights of version {older[0]}"
    if dtype in _COARSE and tolerance < difference <= TOLERANCES[Dtype.bfloat16]:
        return f"precision, it computes in {dtype}"
    if older is None:
        return "stale or perturbed, nothing is known of the weights before"
    return "perturbed, its weights are not those that were published"
