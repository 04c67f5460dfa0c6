"""What the ledger knows of single episodes: for `agentrl why`, `episodes` and `replay`."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.ledger.reader import LedgerReader
from agentrl.wire import Segment, Trajectory, decode


@dataclass(frozen=True, kw_only=True)
class Story:
    """One attempt, with its group. Fields of the verdict are None while it runs, or if its controller died."""

    episode: str
    group: str
    task: str
    member: int
    attempt: int
    epoch: int
    version: int | None
    started_at: float
    ended_at: float | None
    verdict: str | None
    cause: str | None
    reward: float | None
    num_turns: int | None
    num_tokens: int | None
    active_s: float | None
    oldest_version: int | None
    newest_version: int | None
    evidence: dict[str, Any] = field(default_factory=dict)
    group_state: str
    group_reason: str | None
    step: int | None
    """Whose batch the group is in, or for which it was consumed."""
    group_opened_at: float
    group_closed_at: float | None


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One finished turn."""

    turn: int
    began_at: float
    ended_at: float
    message: str
    command: str | None
    timeout_s: float | None
    exit_code: int | None
    result: dict[str, Any] | None
    observation: str | None
    generation_s: float
    tool_s: float
    suspended_s: float
    num_sampled: int
    """Tokens of the message."""
    num_tokens: int
    """Of message and observation, and in turn 0 of the prompt."""


_STORY = """
SELECT e.id, e.group_id, g.task, e.member, e.attempt, e.epoch, e.version, e.started_at, e.ended_at, e.verdict, e.cause,
  e.reward, e.num_turns, e.num_tokens, e.active_s, e.oldest_version, e.newest_version, e.evidence, g.state, g.reason,
  g.step, g.opened_at, g.closed_at
FROM episodes e JOIN groups g ON e.group_id = g.id
"""
_STORY_FIELDS = (
    *("episode", "group", "task", "member", "attempt", "epoch", "version", "started_at", "ended_at", "verdict"),
    *("cause", "reward", "num_turns", "num_tokens", "active_s", "oldest_version", "newest_version", "evidence"),
    *("group_state", "group_reason", "step", "group_opened_at", "group_closed_at"),
)
_TURN_FIELDS = (
    *("turn", "began_at", "ended_at", "message", "command", "timeout_s", "exit_code", "result", "observation"),
    *("generation_s", "tool_s", "suspended_s", "num_sampled", "num_tokens"),
)


class Stories:
    """Read-only, on a ledger's file."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    @classmethod
    def open(cls, path: Path) -> Stories:
        """Raises UserError if there is no ledger or it is of another schema version."""
        return cls(LedgerReader.open(path)._db)

    def close(self) -> None:
        self._db.close()

    def find(self, episode: str) -> Story | None:
        """One episode, of training or of an evaluation."""
        found = self._stories("WHERE e.id = ?", [episode])
        return found[0] if found else self._evaluation(episode)

    def of_group(self, group: str) -> list[Story]:
        """All attempts at the members of a group."""
        return self._stories("WHERE e.group_id = ? ORDER BY e.member, e.attempt", [group])

    def all(self, *, verdict: str | None = None, task: str | None = None) -> list[Story]:
        """Episodes in launch order; `task` is a shell pattern."""
        return self._stories(
            "WHERE (? IS NULL OR e.verdict = ?) AND (? IS NULL OR g.task GLOB ?) ORDER BY g.seq, e.member, e.attempt",
            [verdict, verdict, task, task],
        )

    def tasks(self) -> list[str]:
        """Names of the tasks that groups were opened for."""
        return [name for (name,) in self._db.execute("SELECT DISTINCT task FROM groups ORDER BY task")]

    def turns(self, episode: str) -> list[Turn]:
        """Finished turns, in order."""
        columns = ", ".join(_TURN_FIELDS[:-1])
        tokens = "num_sampled + num_prompt + num_observed"
        rows = self._db.execute(f"SELECT {columns}, {tokens} FROM turns WHERE episode = ? ORDER BY turn", (episode,))
        found = [dict(zip(_TURN_FIELDS, row, strict=True)) for row in rows]
        return [Turn(**{**row, "result": json.loads(row["result"]) if row["result"] else None}) for row in found]

    def tokens(self, episode: str) -> list[Segment]:
        """Ids, mask, log-probs and versions of each sequence of an episode as far as it got; none once pruned."""
        row = self._db.execute("SELECT trajectory FROM episodes WHERE id = ?", (episode,)).fetchone()
        if row and row[0]:
            return [_segment(sequence) for sequence in decode(row[0], Trajectory).sequences()]
        rows = self._db.execute("SELECT segment FROM turns WHERE episode = ? ORDER BY turn", (episode,)).fetchall()
        parts = [decode(blob, Segment) for (blob,) in rows if blob]
        if not parts or len(parts) != len(rows):
            return []
        return [_joined([part for part in parts if part.sequence == one]) for one in {p.sequence: None for p in parts}]

    def _evaluation(self, episode: str) -> Story | None:
        """An episode of an evaluation, of which less is kept; its label stands for a group."""
        row = self._db.execute(
            "SELECT label, version, task, verdict, reward FROM evaluations WHERE episode = ?", (episode,)
        ).fetchone()
        if row is None:
            return None
        label, version, task, verdict, reward = row
        turns = self.turns(episode)
        began = turns[0].began_at if turns else 0.0
        return Story(
            episode=episode,
            group=label,
            task=task,
            member=0,
            attempt=0,
            epoch=0,
            version=version,
            started_at=began,
            ended_at=turns[-1].ended_at if turns else began,
            verdict=verdict,
            cause=None,
            reward=reward,
            num_turns=len(turns),
            num_tokens=sum(turn.num_tokens for turn in turns),
            active_s=None,
            oldest_version=version,
            newest_version=version,
            group_state=f"evaluation {label}",
            group_reason=None,
            step=None,
            group_opened_at=began,
            group_closed_at=None,
        )

    def _stories(self, where: str, values: list[Any]) -> list[Story]:
        rows = self._db.execute(f"{_STORY} {where}", values).fetchall()
        found = [dict(zip(_STORY_FIELDS, row, strict=True)) for row in rows]
        return [Story(**{**row, "evidence": json.loads(row["evidence"] or "{}")}) for row in found]


def _segment(whole: Trajectory) -> Segment:
    return Segment(ids=whole.ids, mask=whole.mask, logprobs=whole.logprobs, versions=whole.versions)


def _joined(parts: list[Segment]) -> Segment:
    return Segment(
        ids=b"".join(part.ids for part in parts),
        mask=b"".join(part.mask for part in parts),
        logprobs=b"".join(part.logprobs for part in parts),
        versions=b"".join(part.versions for part in parts),
        sequence=parts[0].sequence,
    )
