"""How far the batch is from the policy that it trains: engine against trainer, old versions against the current one.

Pure functions over numpy arrays on the axis N of sampled tokens.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from agentrl.trainer.batching import Floats, Ints

Doubles = npt.NDArray[np.float64]


def engine_mismatch(trainer_N: Floats, engine_N: Floats, current_N: npt.NDArray[np.bool_]) -> dict[str, float]:
    """Trainer's against engine's log-probs where both had equal weights (`current_N`). Empty if there is no such token.

    With r = trainer / engine, over tokens sampled by the engine: k1 = mean(-log r) and k3 = mean(r - 1 - log r)
    estimate KL(engine || trainer) (Schulman 2020); mean and max are of |log r|. All are 0 but for numerics.
    """
    if not current_N.any():
        return {}
    log_ratio = trainer_N[current_N].astype(np.float64) - engine_N[current_N]
    return {
        "mismatch_k1": float(-log_ratio.mean()),
        "mismatch_k3": float((np.expm1(log_ratio) - log_ratio).mean()),
        "mismatch_mean": float(np.abs(log_ratio).mean()),
        "mismatch_max": float(np.abs(log_ratio).max()),
    }


def policy_lag(versions_N: Ints, version: int) -> dict[str, float]:
    """Versions between each token and the policy that it trains (`version`): median and maximum."""
    if not versions_N.size:
        return {"lag_p50": 0.0, "lag_max": 0.0}
    lag_N = version - versions_N
    return {"lag_p50": float(np.median(lag_N)), "lag_max": float(lag_N.max())}


def effective_sample_size(proximal_N: Floats, behaviour_N: Floats) -> float:
    """(sum w)^2 / (N sum w^2) with the uncapped weights w = exp(proximal - behaviour): Kish's share, in (0, 1].

    1 when the data is on policy; under about 0.3 few tokens carry the step. No token: 1.
    """
    if not proximal_N.size:
        return 1.0
    log_weights = proximal_N.astype(np.float64) - behaviour_N
    weights = np.exp(log_weights - log_weights.max())
    return float(weights.sum() ** 2 / (weights.size * np.square(weights).sum()))
