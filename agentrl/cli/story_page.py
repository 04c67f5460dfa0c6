"""The page of `agentrl why`: an episode as lines of text. What the model or a sandbox said is shown, never obeyed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl.ledger.stories import Story, Turn

_SHOWN_LINES = 12
"""Of one message or output, unless all is asked for."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What could move a terminal's cursor, colour it or reverse its text."""


@dataclass(frozen=True)
class Line:
    """One line; `heading` lines stand out on a terminal."""

    text: str
    heading: bool = False


def page(run: str, story: Story, turns: list[Turn], group: list[Story], *, full: bool) -> list[Line]:
    """The whole story."""
    lines = [Line(f"{story.episode}  {_verdict(story)}", heading=True)]
    lines += [Line(f"  {text}") for text in _facts(run, story)]
    lines += [Line("time", heading=True), *(Line(f"  {text}") for text in _time(story, turns))]
    lines += [Line("group", heading=True), *(Line(f"  {text}") for text in _group(story, group))]
    lines += [Line("evidence", heading=True), *(Line(f"  {text}") for text in _evidence(story, full))]
    for turn in turns:
        lines += _turn(turn, story, full)
    if not turns:
        lines.append(Line("no turn was finished", heading=True))
    return lines


def print_page(lines: list[Line]) -> None:
    """To the terminal, with headings in bold; plain where it is not one."""
    from rich.console import Console
    from rich.text import Text

    console = Console(markup=False, highlight=False, emoji=False, soft_wrap=True)
    for line in lines:
        console.print(Text(line.text, style="bold" if line.heading else ""))


def _verdict(story: Story) -> str:
    from agentrl.controller.scheduling.selection import CANCELLED

    if story.cause in CANCELLED:
        return f"cancelled: {CANCELLED[story.cause]}"
    if story.verdict is None:
        return "unfinished: its controller ended" if story.ended_at else "running"
    reward = "" if story.reward is None else f", reward {story.reward:g}"
    return f"{story.verdict}{f': {story.cause}' if story.cause else ''}{reward}"


def _facts(run: str, story: Story) -> Iterator[str]:
    from agentrl.config.describe import member_docs
    from agentrl.rollout.verdict import Cause

    docs = member_docs(Cause)
    if story.cause in set(Cause):
        yield docs.get(Cause(story.cause).name, "")
    yield f"run {run}, task {safe(story.task)}, group {story.group}, member {story.member}, attempt {story.attempt}"
    yield f"started {_clock(story.started_at)}" + (f", ended {_clock(story.ended_at)}" if story.ended_at else "")
    if story.version is not None:
        versions = "" if story.oldest_version is None else f", sampled under {_span(story)}"
        yield f"launched when version {story.version} was served{versions}"
    if story.num_turns is not None:
        yield f"{story.num_turns} turns, {story.num_tokens} tokens"


def _span(story: Story) -> str:
    oldest, newest = story.oldest_version, story.newest_version
    return f"version {oldest}" if oldest == newest else f"versions {oldest} to {newest}"


def _time(story: Story, turns: list[Turn]) -> Iterator[str]:
    """Who waited for whom."""
    if story.ended_at is None:
        yield "it has not ended"
        return
    whole = story.ended_at - story.started_at
    times: dict[str, float] = story.evidence.get("times") or {
        "generation_s": sum(turn.generation_s for turn in turns),
        "tool_s": sum(turn.tool_s for turn in turns),
        "suspended_s": sum(turn.suspended_s for turn in turns),
    }
    said = {
        "start_s": "waited for its sandbox",
        "generation_s": "waited for an engine",
        "tool_s": "its commands ran",
        "suspended_s": "waited for the trainer",
        "verifier_s": "was graded",
    }
    for name, words in said.items():
        spent = times.get(name, 0.0)
        if spent >= 0.05:
            yield f"{spent:9.1f} s  {100 * spent / whole if whole else 0:3.0f} %  {words}"
    yield f"{whole:9.1f} s        in all"


def _group(story: Story, group: list[Story]) -> Iterator[str]:
    reason = f": {story.group_reason}" if story.group_reason else ""
    step = f" of step {story.step}" if story.step is not None else ""
    yield f"{story.group_state}{step}{reason}"
    for other in group:
        ended = (
            f"ended {other.ended_at - story.group_opened_at:.1f} s after it was opened" if other.ended_at else "runs"
        )
        mark = "->" if other.episode == story.episode else "  "
        yield f"{mark} {other.episode}  {_verdict(other)}, {ended}"
    ends = [other.ended_at for other in group if other.ended_at]
    if len(ends) > 1 and story.ended_at and story.group_closed_at:
        last = max((other for other in group if other.ended_at), key=lambda other: other.ended_at or 0.0)
        waited = (last.ended_at or 0.0) - story.ended_at
        if last.episode != story.episode and waited > 0.05:
            yield f"it then waited {waited:.1f} s for {last.episode}"


def _evidence(story: Story, full: bool) -> Iterator[str]:
    shown = {name: value for name, value in story.evidence.items() if name != "times"}
    if not shown:
        yield "none"
    for name, value in shown.items():
        yield from _field(name, value, full)


def _field(name: str, value: Any, full: bool) -> Iterator[str]:
    if isinstance(value, dict):
        kept = {key: inner for key, inner in value.items() if inner not in (None, 0, 0.0, "", [], {})}
        if kept:
            yield f"{name}:"
        for key, inner in kept.items():
            for line in _field(key, inner, full):
                yield f"  {line}"
    elif isinstance(value, str) and "\n" in value.strip():
        yield f"{name}:"
        yield from (f"  | {line}" for line in _cut(value, full))
    elif value not in (None, [], ()):
        yield f"{name}: {safe(str(value))}"


def _turn(turn: Turn, story: Story, full: bool) -> list[Line]:
    at = turn.began_at - story.started_at
    spent = f"generation {turn.generation_s:.1f} s, command {turn.tool_s:.1f} s"
    waited = f", suspended {turn.suspended_s:.1f} s" if turn.suspended_s >= 0.05 else ""
    tokens = f"{turn.num_sampled} tokens"
    lines = [Line(f"turn {turn.turn}  +{at:.1f} s  ({spent}{waited}; {tokens})", heading=True)]
    if turn.command is None or turn.command.strip() != turn.message.strip():
        lines += [Line(f"  says | {text}") for text in _cut(turn.message, full)]
    if turn.command is not None:
        lines += [Line(f"  $ {text}") for text in _cut(turn.command, full)]
    if turn.observation is not None:
        lines += [Line(f"  {text}") for text in _cut(turn.observation, full)]
    if ended := _ended(turn):
        lines.append(Line(f"  ({ended})"))
    return lines


def _ended(turn: Turn) -> str:
    """What the observation does not say of the command's end."""
    result = turn.result or {}
    said = [f"exit code {turn.exit_code}"] if turn.exit_code is not None else []
    said += [f"signal {result['signal']}"] if result.get("signal") else []
    said += ["timed out"] if result.get("timed_out") else []
    said += ["out of memory"] if result.get("oom") else []
    said += [f"{result['leftover_processes']} processes left"] if result.get("leftover_processes") else []
    return ", ".join(said)


def _cut(text: str, full: bool) -> list[str]:
    lines = [safe(line) for line in text.splitlines()] or [""]
    if full or len(lines) <= _SHOWN_LINES:
        return lines
    half = _SHOWN_LINES // 2
    return [*lines[:half], f"... {len(lines) - 2 * half} more lines: --full", *lines[-half:]]


def safe(text: str) -> str:
    """With control characters as escapes."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
