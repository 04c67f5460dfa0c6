"""What the trainer says of its new weights, for engines to be held against."""

from __future__ import annotations

import numpy as np

from agentrl.trainer.policy import Policy
from agentrl.wire import Probe, Trajectory

MAX_TOKENS = 256
NUM_ENDS = 8


def make_probe(policy: Policy, trajectory: Trajectory) -> Probe:
    """Log-probs at up to `NUM_ENDS` places, evenly spread over the first `MAX_TOKENS` tokens of an episode that the
    policy has just been trained on: what engines are asked in earnest. Collective."""
    ids = trajectory.ids_array()[:MAX_TOKENS].tolist()
    # The whole is no prefix: an engine needs room for one more token.
    ends = sorted({int(end) for end in np.linspace(1, max(len(ids) - 1, 1), NUM_ENDS)})
    return Probe(ids=ids, ends=ends, logprobs=policy.best_logprobs(ids, ends))
