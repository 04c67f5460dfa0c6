"""Mismatch, lag and effective sample size on cases that can be worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from agentrl.trainer.mismatch import effective_sample_size, engine_mismatch, policy_lag


def _floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def test_equal_logprobs_have_no_mismatch() -> None:
    logprobs_N = _floats(-1, -2)
    measured = engine_mismatch(logprobs_N, logprobs_N, np.array([True, True]))
    assert measured == {"mismatch_k1": 0, "mismatch_k3": 0, "mismatch_mean": 0, "mismatch_max": 0}


def test_mismatch_counts_only_tokens_of_equal_weights() -> None:
    measured = engine_mismatch(_floats(-1.5, -9), _floats(-1, -1), np.array([True, False]))
    assert measured["mismatch_k1"] == pytest.approx(0.5)
    assert measured["mismatch_k3"] == pytest.approx(np.exp(-0.5) - 1 + 0.5)
    assert measured["mismatch_mean"] == measured["mismatch_max"] == pytest.approx(0.5)


def test_without_tokens_of_the_current_version_there_is_no_mismatch_to_report() -> None:
    assert engine_mismatch(_floats(-1), _floats(-1), np.array([False])) == {}


def test_lag_is_counted_in_versions_behind_the_trained_policy() -> None:
    assert policy_lag(np.array([4, 4, 2]), version=4) == {"lag_p50": 0, "lag_max": 2}
    assert policy_lag(np.array([], dtype=np.int64), version=4) == {"lag_p50": 0, "lag_max": 0}


def test_effective_sample_size_is_one_on_policy_and_small_when_one_token_carries_all() -> None:
    assert effective_sample_size(_floats(-1, -2), _floats(-1, -2)) == pytest.approx(1)
    assert effective_sample_size(_floats(0, -90, -90, -90), _floats(-9, -9, -9, -9)) == pytest.approx(0.25)
    assert effective_sample_size(_floats(), _floats()) == 1
