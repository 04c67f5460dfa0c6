"""Recorded episodes instead of drawn ones: what is known of each is taken over, what is not known is drawn by the laws.

Public trials say how long an agent worked and how its sandbox fared; the turns of a real run's ledger say everything.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Annotated

import msgspec
from msgspec import Meta

from agentrl.errors import UserError
from agentrl.simulation.laws import AtLeast0

INFRASTRUCTURE = frozenset({"parse_error", "test_timeout", "agent_installation_failed", "unknown_agent_error"})
"""Failure modes of public trials that are not the agent's doing; `agent_timeout` is."""
TURNS_OF_MEDIAN_TRIAL = 25
"""Trials say seconds, not turns: the median one is taken to have as many turns as the median episode of W-TB."""
_COLUMNS = ("task", "agent", "setup_s", "agent_s", "verifier_s", "resolved", "failure_mode")


class RecordedTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One generation and the tool call it asked for."""

    generated_tokens: int
    observation_tokens: int
    tool_s: float


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """One episode as it was."""

    num_turns: Annotated[int, Meta(ge=1)]
    turns: tuple[RecordedTurn, ...] = ()
    """Empty: `num_turns` of them are drawn."""
    start_s: AtLeast0
    """Its sandbox's start."""
    verifier_s: AtLeast0
    reward: float
    failed: bool = False
    """It lost its sandbox."""


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded episodes by task."""

    tasks: Annotated[tuple[tuple[Recorded, ...], ...], Meta(min_length=1)]
    shuffled: bool = True
    """Each seed meets tasks and episodes in an order of its own; else group k is task k and member m its episode m."""

    def find(self, seed: int, group: int, member: int) -> Recorded:
        """The episode that a member of a group replays. More groups than tasks, or members than episodes: again."""
        turn_over, index = divmod(group, len(self.tasks))
        if not self.shuffled:
            return self.tasks[index][member % len(self.tasks[index])]
        order = list(range(len(self.tasks)))
        Random(f"replay/{seed}/{turn_over}").shuffle(order)
        episodes = list(self.tasks[order[index]])
        Random(f"replay/{seed}/group/{group}").shuffle(episodes)
        return episodes[member % len(episodes)]


def read_trials(path: Path) -> Replay:
    """Trials from a CSV file, grouped by task and agent. Trials without times are left out. Raises UserError."""
    groups: dict[tuple[str, str], list[Recorded]] = defaultdict(list)
    rows = timed_trials(path)
    seconds_per_turn = seconds_of_turn([float(row["agent_s"]) for row in rows])
    for row in rows:
        groups[row["task"], row["agent"]].append(_recorded(row, seconds_per_turn))
    return Replay(tasks=tuple(tuple(groups[key]) for key in sorted(groups)))


def timed_trials(path: Path) -> list[dict[str, str]]:
    """Rows of a trials file that have all their times. Raises UserError: no such file, no such columns, none timed."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = [column for column in _COLUMNS if column not in (reader.fieldnames or ())]
            if missing:
                raise UserError(f"{path}: no column {missing[0]!r}", hint=f"needed: {', '.join(_COLUMNS)}")
            rows = [row for row in reader if row["setup_s"] and row["agent_s"] and row["verifier_s"]]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not rows:
        raise UserError(f"{path}: no trial has setup_s, agent_s and verifier_s")
    for row in rows:
        _check_numbers(row, path)
    return rows


def _check_numbers(row: Mapping[str, str], path: Path) -> None:
    for column in ("setup_s", "agent_s", "verifier_s", "resolved"):
        try:
            usable = 0 <= float(row[column] or 0) < math.inf
        except ValueError:
            usable = False
        if not usable:
            raise UserError(f"{path}: trial of task {row['task']!r}: {column} is {row[column]!r}, not a number from 0")


def seconds_of_turn(agent_s: list[float]) -> float:
    """Seconds that a turn is taken to last in trials of such lengths."""
    ordered = sorted(agent_s)
    return max(ordered[len(ordered) // 2], 1e-3) / TURNS_OF_MEDIAN_TRIAL


def _recorded(row: Mapping[str, str], seconds_per_turn: float) -> Recorded:
    return Recorded(
        num_turns=max(round(float(row["agent_s"]) / seconds_per_turn), 1),
        start_s=float(row["setup_s"]),
        verifier_s=float(row["verifier_s"]),
        reward=float(row["resolved"] or 0),
        failed=row["failure_mode"] in INFRASTRUCTURE,
    )
