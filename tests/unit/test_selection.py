"""Trained against started: what was lost to infrastructure does not count, what was cancelled does."""

from __future__ import annotations

import pytest

from agentrl.controller.scheduling.selection import selection_bias
from agentrl.ledger.rows import EpisodeRow


def row(group: str, turns: int | None, *, verdict: str | None = "success", cause: str = "rewarded") -> EpisodeRow:
    usable = verdict in ("success", "model_failure")
    return EpisodeRow(
        id=f"{group}.m000.a00",
        group=group,
        member=0,
        attempt=0,
        verdict=verdict,
        cause=cause,
        reward=1.0 if usable else None,
        num_turns=turns,
        num_tokens=None if turns is None else 100 * turns,
        active_s=1.0,
        oldest_version=0,
        newest_version=0,
    )


def test_nothing_is_said_before_a_batch() -> None:
    assert selection_bias([row("g0", 3)], set()) is None


def test_training_on_all_that_was_started_is_fair() -> None:
    bias = selection_bias([row("g0", 3), row("g1", 9)], {"g0", "g1"})
    assert bias is not None
    assert (bias.turns, bias.tokens, bias.num_trained, bias.num_started) == (0, 0, 2, 2)


def test_cancelled_episodes_count_as_long_as_they_had_become() -> None:
    cancelled = [row("g0", 8, verdict=None, cause="surplus"), row("g0", 8, verdict=None, cause="straggler")]
    bias = selection_bias([row("g0", 4), *cancelled], {"g0"})
    assert bias is not None
    assert bias.turns == pytest.approx(4 / (20 / 3) - 1)
    assert bias.num_cancelled == 2


def test_lost_attempts_and_those_that_still_act_do_not_count() -> None:
    others = [
        row("g0", 50, verdict="infra_failure", cause="sandbox_lost"),
        row("g0", None, verdict=None, cause="unfinished"),
        row("g1", None, verdict=None),
    ]
    bias = selection_bias([row("g0", 4), *others], {"g0"})
    assert bias is not None
    assert (bias.turns, bias.num_started) == (0, 1)


def test_groups_that_were_dropped_were_started_too() -> None:
    bias = selection_bias([row("g0", 2), row("g1", 6)], {"g0"})
    assert bias is not None
    assert bias.turns == -0.5
