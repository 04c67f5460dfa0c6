"""Mismatch, lag and effective sample size on cases that can be worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from agentrl.trainer.mismatch import (
    divergence,
    divergence_by_lag,
    effective_sample_size,
    engine_mismatch,
    log_ratio,
    policy_lag,
)


def _floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def test_equal_logprobs_have_no_mismatch() -> None:
    logprobs_N = _floats(-1, -2)
    measured = engine_mismatch(logprobs_N, logprobs_N, np.array([True, True]), limit=0.1)
    assert set(measured) == {f"mismatch_{name}" for name in ("k1", "k3", "mean", "max", "over_share")}
    assert not any(measured.values())


def test_mismatch_counts_only_tokens_of_equal_weights() -> None:
    measured = engine_mismatch(_floats(-1.5, -9), _floats(-1, -1), np.array([True, False]), limit=0.1)
    assert measured["mismatch_k1"] == pytest.approx(0.5)
    assert measured["mismatch_k3"] == pytest.approx(np.exp(-0.5) - 1 + 0.5)
    assert measured["mismatch_mean"] == measured["mismatch_max"] == pytest.approx(0.5)


def test_without_tokens_of_the_current_version_there_is_no_mismatch_to_report() -> None:
    assert engine_mismatch(_floats(-1), _floats(-1), np.array([False]), limit=0.1) == {}


def test_the_share_of_tokens_over_the_limit_counts_both_directions() -> None:
    trainer_N, engine_N = _floats(-1.2, -0.8, -1.05, -1), _floats(-1, -1, -1, -1)
    measured = engine_mismatch(trainer_N, engine_N, np.ones(4, dtype=bool), limit=0.1)
    assert measured["mismatch_over_share"] == 0.5


def test_lag_is_counted_in_versions_behind_the_trained_policy() -> None:
    assert policy_lag(np.array([4, 4, 2]), version=4) == {"lag_p50": 0, "lag_max": 2}
    assert policy_lag(np.array([], dtype=np.int64), version=4) == {"lag_p50": 0, "lag_max": 0}


def test_effective_sample_size_is_one_on_policy_and_small_when_one_token_carries_all() -> None:
    assert effective_sample_size(log_ratio(_floats(-1, -2), _floats(-1, -2))) == pytest.approx(1)
    one = log_ratio(_floats(0, -90, -90, -90), _floats(-9, -9, -9, -9))
    assert effective_sample_size(one) == pytest.approx(0.25)
    assert effective_sample_size(log_ratio(_floats(), _floats())) == 1


def test_divergence_is_by_the_formulas() -> None:
    measured = divergence(log_ratio(_floats(-1, -2), _floats(-2, -1)))
    ratios = np.exp([1.0, -1.0])
    assert measured["k3"] == pytest.approx(np.mean(ratios - 1 - np.log(ratios)))
    assert measured["chi2"] == pytest.approx(np.mean(ratios**2) - 1)
    assert measured["ratio_p50"] == pytest.approx(np.mean(ratios))


def test_divergence_is_told_apart_by_lag() -> None:
    proximal_N, behaviour_N = _floats(-1, -1, -3, -1), _floats(-1, -1, -1, -2)
    measured = divergence_by_lag(log_ratio(proximal_N, behaviour_N), np.array([4, 4, 2, -9]), version=4)
    assert {name.split("/")[0] for name in measured} == {"lag0", "lag2", "lag8"}  # 13 versions count as 8 and more
    assert measured["lag0/k3"] == measured["lag0/chi2"] == 0
    assert measured["lag2/k3"] == pytest.approx(np.exp(-2) - 1 + 2)
    assert (measured["lag0/share"], measured["lag2/share"], measured["lag8/share"]) == (0.5, 0.25, 0.25)


def test_ratios_that_overflow_are_reported_as_finite_numbers() -> None:
    measured = divergence(log_ratio(_floats(0, -np.inf), _floats(-900, -1)))
    assert all(np.isfinite(list(measured.values())))
