"""From a message to the command it asks for."""

from __future__ import annotations

import pytest

from agentrl.rollout.config import ToolFormat
from agentrl.rollout.tool_calls import Command, Finished, Malformed, parse

LINE, FENCED, HERMES = ToolFormat.line, ToolFormat.fenced, ToolFormat.hermes


@pytest.mark.parametrize(
    ("tool_format", "message", "action"),
    [
        (LINE, "cat note", Command("cat note")),
        (LINE, " ls -l \n", Command("ls -l")),
        (LINE, "done", Finished()),
        (LINE, "", Malformed("empty message")),
        (FENCED, "I look.\n```bash\nls\ncd x\n```\nThen", Command("ls\ncd x")),
        (FENCED, "```sh\nls\n```", Command("ls")),
        (FENCED, "```\nls\n```\n```bash\nrm x\n```", Command("ls")),
        (FENCED, "```bash\n\n```", Malformed("empty command")),
        (FENCED, "All is done.", Finished()),
        (HERMES, '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>', Command("ls")),
        (HERMES, "I am done", Finished()),
        (
            HERMES,
            '<tool_call>{"name": "python", "arguments": {"command": "1"}}</tool_call>',
            Malformed("the only tool is bash"),
        ),
    ],
)
def test_complete_message(tool_format: ToolFormat, message: str, action: object) -> None:
    assert parse(tool_format, message, complete=True) == action


@pytest.mark.parametrize("body", ["{", "[]", '{"name": "bash"}', '{"name": "bash", "arguments": "ls"}', "3"])
def test_unreadable_tool_call_is_told_to_the_agent(body: str) -> None:
    assert isinstance(parse(HERMES, f"<tool_call>{body}</tool_call>", complete=True), Malformed)


@pytest.mark.parametrize("tool_format", list(ToolFormat))
def test_message_cut_by_its_budget_runs_nothing_and_ends_nothing(tool_format: ToolFormat) -> None:
    assert isinstance(parse(tool_format, "rm -rf x", complete=False), Malformed)


def test_cut_message_with_a_whole_command_in_it_runs_that() -> None:
    assert parse(FENCED, "```bash\nls\n```\nand th", complete=False) == Command("ls")
