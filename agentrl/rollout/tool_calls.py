"""From a model's message to the command that it asks for. On text, for execution only: ids stay the truth."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from agentrl.rollout.config import ToolFormat

_FENCE = re.compile(r"```(?:bash|sh|shell|console)?[ \t]*\n(.*?)\n?```", re.DOTALL)
_HERMES = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


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


def reads_special(tool_format: ToolFormat) -> bool:
    """Whether the format is written with special tokens, which must then be left in the text."""
    return tool_format not in (ToolFormat.line, ToolFormat.fenced, ToolFormat.hermes)


def parse(tool_format: ToolFormat, message: str, *, complete: bool) -> Action:
    """What a message asks for. `complete` is False when sampling stopped at the token limit of the turn."""
    match tool_format:
        case ToolFormat.line:
            return _parse_line(message, complete)
        case ToolFormat.fenced:
            return _parse_fenced(message, complete)
        case ToolFormat.hermes:
            return _parse_hermes(message, complete)


_CUT = Malformed("message cut at the token limit; nothing was run")


def _parse_line(message: str, complete: bool) -> Action:
    if not complete:
        return _CUT
    text = message.strip()
    if text == "done":
        return Finished()
    return Command(text) if text else Malformed("empty message")


def _parse_fenced(message: str, complete: bool) -> Action:
    if block := _FENCE.search(message):
        return Command(block.group(1)) if block.group(1).strip() else Malformed("empty command")
    return Finished() if complete else _CUT


def _parse_hermes(message: str, complete: bool) -> Action:
    call = _HERMES.search(message)
    if call is None:
        return Finished() if complete else _CUT
    try:
        body = json.loads(call.group(1))
        command = body["arguments"]["command"]
    except (ValueError, KeyError, TypeError):
        return Malformed('the tool call must be {"name": "bash", "arguments": {"command": "..."}}')
    if body.get("name") != "bash":
        return Malformed("the only tool is bash")
    return Command(command) if isinstance(command, str) and command.strip() else Malformed("empty command")
