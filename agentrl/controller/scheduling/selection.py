"""Whether what is trained on is like what was started: the price of every way not to wait. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from agentrl.ledger.rows import EpisodeRow

CANCELLED = {"surplus": "its group had enough members", "straggler": "its group was not to wait for it"}
"""Causes of episodes that were ended because nobody needed them, and what they say."""


@dataclass(frozen=True, kw_only=True)
class Bias:
    """Mean of trained episodes over that of started ones, minus 1: -0.1 is 10 % too short."""

    turns: float
    tokens: float
    num_trained: int
    num_started: int
    num_cancelled: int


def selection_bias(episodes: Iterable[EpisodeRow], batched: Collection[str]) -> Bias | None:
    """`batched`: groups that are in a batch. None before the first one.

    Started are episodes that ended by themselves or were cancelled; lost attempts run again and do not count. A
    cancelled one counts as long as it had become, so with cancellations the true bias is greater. Episodes that still
    act are not known yet.
    """
    started = [row for row in episodes if row.num_turns is not None and _counts(row)]
    trained = [row for row in started if row.reward is not None and row.group in batched]
    if not trained:
        return None
    return Bias(
        turns=_ratio([row.num_turns or 0 for row in trained], [row.num_turns or 0 for row in started]),
        tokens=_ratio([row.num_tokens or 0 for row in trained], [row.num_tokens or 0 for row in started]),
        num_trained=len(trained),
        num_started=len(started),
        num_cancelled=sum(row.cause in CANCELLED for row in started),
    )


def _counts(row: EpisodeRow) -> bool:
    return row.cause in CANCELLED if row.verdict is None else row.verdict != "infra_failure"


def _ratio(trained: Sequence[int], started: Sequence[int]) -> float:
    mean = fmean(started)
    return fmean(trained) / mean - 1 if mean else 0.0
