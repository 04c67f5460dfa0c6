"""From a model's message to the command that it asks for. On text, for execution only: ids stay the truth."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentrl.rollout.config import Reasoning, ToolFormat
from agentrl.rollout.tool_formats import Spoken, has_calls, read

_FENCE = re.compile(r"```(?:bash|sh|shell|console)?[ \t]*\n(.*?)\n?```", re.DOTALL)
TOOL = "bash"
"""The one tool of the built-in agent; its one argument is `command`."""


@dataclass(frozen=True)
class Command:
    """Run this in the sandbox."""

    text: str


@dataclass(frozen=True)
class Finished:
    """The agent says that it is done."""


@dataclass(frozen=True)
class Malformed:
    """The message asks for something that cannot be read; `reason` is told to the agent."""

    reason: str


Action = Command | Finished | Malformed


def reads_special(tool_format: ToolFormat, reasoning: Reasoning) -> bool:
    """Whether messages are written with special tokens, which must then be left in the text."""
    return (has_calls(tool_format) and tool_format is not ToolFormat.hermes) or reasoning is not Reasoning.none


def parse(tool_format: ToolFormat, message: str, *, complete: bool, reasoning: Reasoning = Reasoning.none) -> Action:
    """What a message asks for. `complete` is False when sampling stopped at the token limit of the turn."""
    spoken = read(tool_format, message, reasoning=reasoning)
    if spoken.problem is not None:
        return Malformed(f"{spoken.problem}; nothing was run") if complete else _CUT
    match tool_format:
        case ToolFormat.line:
            return _line(spoken.content, complete)
        case ToolFormat.fenced:
            return _fenced(spoken.content, complete)
        case _:
            return _called(spoken, complete)


_CUT = Malformed("message cut at the token limit; nothing was run")


def _line(message: str, complete: bool) -> Action:
    if not complete:
        return _CUT
    text = message.strip()
    if text == "done":
        return Finished()
    return Command(text) if text else Malformed("empty message")


def _fenced(message: str, complete: bool) -> Action:
    if block := _FENCE.search(message):
        return Command(block.group(1)) if block.group(1).strip() else Malformed("empty command")
    return Finished() if complete else _CUT


def _called(spoken: Spoken, complete: bool) -> Action:
    if not spoken.calls:
        return Finished() if complete else _CUT
    call = spoken.calls[0]
    if call.name != TOOL:
        return Malformed(f"the only tool is {TOOL}")
    command = call.arguments.get("command")
    if not isinstance(command, str):
        return Malformed(f"{TOOL} needs the argument command, a text")
    return Command(command) if command.strip() else Malformed("empty command")
