"""Rows of the ledger as values."""

from __future__ import annotations

from dataclasses import dataclass, field

STATES = ("open", "ready", "batched", "dropped")
"""All states of a group."""


@dataclass(frozen=True)
class GroupRow:
    id: str
    seq: int
    task: str
    state: str
    reason: str | None
    step: int | None
    opened_at: float
    closed_at: float | None


@dataclass(frozen=True)
class EpisodeRow:
    """One attempt; fields from `verdict` on are None while it runs."""

    id: str
    group: str
    member: int
    attempt: int
    verdict: str | None
    cause: str | None
    reward: float | None
    num_turns: int | None
    num_tokens: int | None
    active_s: float | None
    oldest_version: int | None
    newest_version: int | None


@dataclass(frozen=True)
class StepRow:
    step: int
    batch_id: str
    assigned_at: float
    time_to_batch_s: float
    reward_sampled: float
    applied_at: float | None = None
    published_at: float | None = None
    weights_path: str | None = None
    metrics: dict[str, float] = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True)
class EvaluationRow:
    label: str
    version: int
    episode: str
    task: str
    verdict: str
    reward: float | None


@dataclass(frozen=True)
class ProcessRow:
    pid: int
    start_ticks: int
    role: str
    started_at: float


@dataclass(frozen=True)
class TurnTimes:
    """One finished turn of a training episode: how long it took, and how much it said. Seconds of the wall clock."""

    episode: str
    turn: int
    began_at: float
    ended_at: float
    generation_s: float
    """Active time, as is `tool_s`: what it was suspended is left out."""
    tool_s: float
    num_sampled: int
    num_prompt: int
    """Tokens before the message: the prompt of turn 0; later 0, unless a sequence begins there or a harness asks."""
    num_observed: int
    called_tool: bool


@dataclass(frozen=True)
class EpisodeTimes:
    """When an ended training episode began and ended, on the wall clock."""

    episode: str
    group: str
    started_at: float
    ended_at: float
    verdict: str | None
    cause: str
    reward: float | None
