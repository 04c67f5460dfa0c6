"""How far the batch is from the policy that it trains: engine against trainer, old versions against the current one.

Pure functions over numpy arrays on the axis N of sampled tokens.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from agentrl.trainer.batching import Floats, Ints
from agentrl.trainer.corrections.limits import LOG_RATIO_BOUND

Doubles = npt.NDArray[np.float64]

_MOST_LAG = 8
"""Lags of this many versions and more are reported together: what is reported must not grow with the run."""
_RATIO_QUANTILES = {"p01": 0.01, "p50": 0.5, "p99": 0.99}


def log_ratio(proximal_N: Floats, behaviour_N: Floats) -> Doubles:
    """log B = log q - log mu, within the bound that the losses hold it in."""
    difference_N: Doubles = proximal_N.astype(np.float64) - behaviour_N
    return np.clip(difference_N, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def engine_mismatch(
    trainer_N: Floats, engine_N: Floats, current_N: npt.NDArray[np.bool_], limit: float
) -> dict[str, float]:
    """Trainer's against engine's log-probs where both had equal weights (`current_N`). Empty if there is no such token.

    With r = trainer / engine, over tokens sampled by the engine: k1 = mean(-log r) and k3 = mean(r - 1 - log r)
    estimate KL(engine || trainer) (Schulman 2020); mean and max are of |log r|, over_share the share of tokens where
    it exceeds `limit` nats. All are 0 but for numerics.
    """
    if not current_N.any():
        return {}
    log_r = log_ratio(trainer_N[current_N], engine_N[current_N])
    return {
        "mismatch_k1": float(-log_r.mean()),
        "mismatch_k3": float((np.expm1(log_r) - log_r).mean()),
        "mismatch_mean": float(np.abs(log_r).mean()),
        "mismatch_max": float(np.abs(log_r).max()),
        "mismatch_over_share": float((np.abs(log_r) > limit).mean()),
    }


def policy_lag(versions_N: Ints, version: int) -> dict[str, float]:
    """Versions between each token and the policy that it trains (`version`): median and maximum."""
    if not versions_N.size:
        return {"lag_p50": 0.0, "lag_max": 0.0}
    lag_N = version - versions_N
    return {"lag_p50": float(np.median(lag_N)), "lag_max": float(lag_N.max())}


def divergence(log_B: Doubles) -> dict[str, float]:
    """How far behaviour is from proximal over some tokens: what their age and the engine's numerics did together.

    k3 = mean(B - 1 - log B) estimates KL(behaviour || proximal); chi2 = mean(B^2) - 1 their chi-square divergence, the
    variance that importance weights have; ess as in `effective_sample_size`; ratio quantiles are of B.
    """
    ratio = np.exp(log_B)
    return {
        "k3": float((np.expm1(log_B) - log_B).mean()),
        "chi2": float(np.square(ratio).mean() - 1),
        "ess": effective_sample_size(log_B),
        **{f"ratio_{name}": float(np.quantile(ratio, share)) for name, share in _RATIO_QUANTILES.items()},
    }


def divergence_by_lag(log_B: Doubles, versions_N: Ints, version: int) -> dict[str, float]:
    """`divergence` and the share of tokens, apart for each lag in the batch: `lag2/k3`; 8 holds 8 and more."""
    lag_N = np.clip(version - versions_N, 0, _MOST_LAG)
    metrics: dict[str, float] = {}
    for lag in np.unique(lag_N).tolist():
        tokens = lag_N == lag
        figures = {"share": float(tokens.mean())} | divergence(log_B[tokens])
        metrics |= {f"lag{lag}/{name}": value for name, value in figures.items()}
    return metrics


def effective_sample_size(log_B: Doubles) -> float:
    """(sum w)^2 / (N sum w^2) with the uncapped weights w = B: Kish's share, in (0, 1].

    1 when the data is on policy; under about 0.3 few tokens carry the step. No token: 1.
    """
    if not log_B.size:
        return 1.0
    weights = np.exp(log_B - log_B.max())
    return float(weights.sum() ** 2 / (weights.size * np.square(weights).sum()))
