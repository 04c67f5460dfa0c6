"""From what a verifier wrote to a reward, or to why there is none. Pure.

A number that is missing, empty, not finite or not a number is a fault of the verifier, never a 0.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from agentrl.tasks.task import StepRewards, Task, Verification

KEY = "reward"
"""The key that decides where a verifier writes several numbers."""

_SUMMARY = re.compile(r"^=+ short test summary info =+\s*$", re.MULTILINE)
_LINE = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b", re.MULTILINE)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_FAILED = {"FAILED", "ERROR"}


@dataclass(frozen=True, kw_only=True)
class Score:
    """Exactly one of `reward` and `problem` is set."""

    reward: float | None = None
    problem: str | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Every number, by key."""


def parse_json(data: bytes) -> Score:
    """reward.json: a number, or an object with one number or with a number named reward."""
    if not data.strip():
        return Score(problem="empty")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return Score(problem="unreadable")
    if not isinstance(value, dict):
        return _number(value)
    if KEY not in value and len(value) > 1:
        return Score(problem="ambiguous")
    score = _number(value.get(KEY, next(iter(value.values()), None)))
    if score.reward is None:
        return score
    numbers = {key: _number(number).reward for key, number in value.items()}
    kept = {key: number for key, number in numbers.items() if number is not None}
    return Score(reward=score.reward, rewards={**kept, KEY: score.reward})


def parse_text(data: bytes) -> Score:
    """reward.txt: one number."""
    text = data.decode(errors="replace").strip()
    if not text:
        return Score(problem="empty")
    try:
        return _finite(float(text))
    except ValueError:
        return Score(problem="not_a_number")


def parse_pytest(output: bytes) -> Score:
    """1 if the short summary of pytest (`-rA`) names a passed test and none that failed, else 0.

    Without a summary nothing was tested: a problem. A test that was skipped or failed as expected decides nothing.
    """
    text = _ANSI.sub("", output.decode(errors="replace"))
    *_, summary = _SUMMARY.split(text) if _SUMMARY.search(text) else [text, ""]
    states = _LINE.findall(summary)
    if not states:
        return Score(problem="missing")
    passed = bool({"PASSED", "XPASS"}.intersection(states)) and not _FAILED.intersection(states)
    return _finite(float(passed))


def together(task: Task, verifications: Sequence[Verification]) -> Verification:
    """One verification out of those of a task's steps, as its strategy says; the last one's problem is that of all."""
    last = verifications[-1]
    if len(verifications) == 1 or last.reward is None:
        return last
    rewards = [verification.reward for verification in verifications if verification.reward is not None]
    combined = rewards[-1] if task.step_rewards is StepRewards.FINAL else sum(rewards) / len(rewards)
    duration_s = sum(verification.duration_s for verification in verifications)
    return replace(last, reward=combined, duration_s=duration_s)


def _number(value: object) -> Score:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Score(problem="not_a_number")
    return _finite(value)


def _finite(value: float) -> Score:
    try:
        reward = float(value)
    except OverflowError:
        return Score(problem="not_finite")
    if not math.isfinite(reward):
        return Score(problem="not_finite")
    return Score(reward=reward, rewards={KEY: reward})
