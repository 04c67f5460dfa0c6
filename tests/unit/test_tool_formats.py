"""Tool calls of each family as their templates write them; malformed and cut ones are problems, never guesses."""

from __future__ import annotations

import pytest

from agentrl.rollout.config import Reasoning, ToolFormat
from agentrl.rollout.tool_calls import Command, Finished, Malformed, parse
from agentrl.rollout.tool_formats import Call, has_calls, read

F = ToolFormat
LS = Call(name="bash", arguments={"command": "ls -l"})
CD = Call(name="bash", arguments={"command": "cd /\nls"})
BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
ONE, STOP, SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"

WRITTEN = [
    (F.hermes, '<tool_call>\n{"name": "bash", "arguments": {"command": "ls -l"}}\n</tool_call>', [LS]),
    (
        F.hermes,
        '<tool_call>{"name": "bash", "arguments": {"command": "ls -l"}}</tool_call>\n'
        '<tool_call>{"name": "bash", "arguments": {"command": "cd /\\nls"}}</tool_call>',
        [LS, CD],
    ),
    (F.hermes, '<tool_call>{"name": "bash", "arguments": {"command": "cd /\nls"}}</tool_call>', [CD]),
    (
        F.qwen_coder,
        "<tool_call>\n<function=bash>\n<parameter=command>\nls -l\n</parameter>\n</function>\n</tool_call>",
        [LS],
    ),
    (
        F.qwen_coder,
        "<tool_call><function=bash><parameter=command>cd /\nls</parameter></function></tool_call>",
        [CD],
    ),
    (F.qwen_coder, "<tool_call><function=quit></function></tool_call>", [Call(name="quit", arguments={})]),
    (F.glm, "<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>ls -l</arg_value>\n</tool_call>", [LS]),
    (F.glm, "<tool_call>quit</tool_call>", [Call(name="quit", arguments={})]),
    (F.llama, '{"name": "bash", "parameters": {"command": "ls -l"}}', [LS]),
    (F.llama, '<|python_tag|>{"name": "bash", "parameters": {"command": "ls -l"}}', [LS]),
    (
        F.llama,
        '{"name": "bash", "parameters": {"command": "ls -l"}}; '
        '{"name": "bash", "parameters": {"command": "cd /\\nls"}}',
        [LS, CD],
    ),
    (F.mistral, '[TOOL_CALLS] [{"name": "bash", "arguments": {"command": "ls -l"}, "id": "VvvODy9mT"}]', [LS]),
    (F.mistral, '[TOOL_CALLS]bash[ARGS]{"command": "ls -l"}[TOOL_CALLS]bash[ARGS]{"command": "cd /\\nls"}', [LS, CD]),
    (F.mistral, '[TOOL_CALLS]bash[CALL_ID]VvvODy9mT[ARGS]{"command": "ls -l"}', [LS]),
    (F.deepseek, f'{BEGIN}{ONE}function{SEP}bash\n```json\n{{"command": "ls -l"}}\n```{STOP}{END}', [LS]),
    (F.deepseek, f'{BEGIN}{ONE}bash{SEP}{{"command": "ls -l"}}{STOP}{END}', [LS]),
    (
        F.deepseek,
        f'{BEGIN}{ONE}bash{SEP}{{"command": "ls -l"}}{STOP}\n{ONE}bash{SEP}{{"command": "cd /\\nls"}}{STOP}{END}',
        [LS, CD],
    ),
]
CALLING = [one for one in F if has_calls(one)]


@pytest.mark.parametrize(("tool_format", "text", "calls"), WRITTEN)
def test_calls_are_read_as_their_template_writes_them(tool_format: F, text: str, calls: list[Call]) -> None:
    spoken = read(tool_format, text)
    assert (list(spoken.calls), spoken.content, spoken.problem) == (calls, "", None)
    assert parse(tool_format, text, complete=True) == (
        Malformed("the only tool is bash") if calls[0].name == "quit" else Command(calls[0].arguments["command"])
    )


@pytest.mark.parametrize(("tool_format", "text", "calls"), [one for one in WRITTEN if one[0] is not F.llama])
def test_text_around_calls_is_content(tool_format: F, text: str, calls: list[Call]) -> None:
    spoken = read(tool_format, f"Let me see.\n\n{text}")
    assert (list(spoken.calls), spoken.content) == (calls, "Let me see.")


@pytest.mark.parametrize(("tool_format", "text", "calls"), WRITTEN)
def test_a_message_that_is_cut_anywhere_gives_only_calls_that_are_whole(
    tool_format: F, text: str, calls: list[Call]
) -> None:
    for length in range(len(text)):
        spoken = read(tool_format, text[:length])
        assert list(spoken.calls) == calls[: len(spoken.calls)]
        action = parse(tool_format, text[:length], complete=False)
        assert action == Command("ls -l") or isinstance(action, Malformed)


@pytest.mark.parametrize("tool_format", CALLING)
def test_text_without_calls_is_content_and_ends_the_episode(tool_format: F) -> None:
    text = " The answer is {42} <b> [x].\n"
    assert read(tool_format, text).content == text
    assert parse(tool_format, text, complete=True) == Finished()


@pytest.mark.parametrize(
    ("tool_format", "text", "problem"),
    [
        (F.hermes, "<tool_call>ls</tool_call>", "not JSON"),
        (F.hermes, '<tool_call>["bash"]</tool_call>', "must be"),
        (F.hermes, '<tool_call>{"name": "", "arguments": {}}</tool_call>', "must be"),
        (F.hermes, '<tool_call>{"name": "bash", "arguments": "ls"}</tool_call>', "must be an object"),
        (F.hermes, '<tool_call>{"name": "bash"}', "not closed"),
        (F.hermes, '{"name": "bash"}</tool_call>', "closes nothing"),
        (F.hermes, '<tool_call><tool_call>{"name": "bash"}</tool_call>', "not closed"),
        (F.qwen_coder, '<tool_call>{"name": "bash"}</tool_call>', "must be <function"),
        (F.qwen_coder, "<tool_call><function=bash><parameter=command>ls</function></tool_call>", "only parameters"),
        (F.qwen_coder, "<tool_call><function=bash>ls</function></tool_call>", "only parameters"),
        (F.glm, "<tool_call>bash<arg_key>command</arg_key></tool_call>", "only arguments"),
        (F.glm, "<tool_call>run the bash<arg_key>c</arg_key><arg_value>ls</arg_value></tool_call>", "tool's name"),
        (F.llama, "<|python_tag|>print(1)", "not JSON"),
        (F.llama, "<|python_tag|>", "nothing follows"),
        (F.llama, '{"name": "bash", "parameters": {"command": "ls"}} and more', "not JSON"),
        (F.llama, '{"name": "bash", "parameters": "ls"}', "must be an object"),
        (F.mistral, '[TOOL_CALLS]{"name": "bash"}', "list of calls"),
        (F.mistral, "[TOOL_CALLS][]", "list of calls"),
        (F.mistral, '[TOOL_CALLS]bash[ARGS]{"command": "ls"} then', "only calls"),
        (F.mistral, "[TOOL_CALLS]bash", "not JSON"),
        (F.deepseek, f'{BEGIN}{ONE}bash{{"command": "ls"}}{STOP}{END}', "lacks its"),
        (F.deepseek, f'{BEGIN}bash{SEP}{{"command": "ls"}}{END}', "only calls"),
        (F.deepseek, f"{BEGIN}{ONE}function{SEP}bash\n```json\nls\n```{STOP}{END}", "not JSON"),
    ],
)
def test_a_call_that_does_not_follow_its_format_is_told(tool_format: F, text: str, problem: str) -> None:
    spoken = read(tool_format, text)
    assert spoken.calls == () and problem in (spoken.problem or "")
    action = parse(tool_format, text, complete=True)
    assert isinstance(action, Malformed) and problem in action.reason


@pytest.mark.parametrize("tool_format", [F.qwen_coder, F.glm])
def test_arguments_written_as_text_get_the_types_of_the_tools_schema(tool_format: F) -> None:
    text = {
        F.qwen_coder: "<tool_call><function=f><parameter=n>3</parameter><parameter=s>3</parameter>"
        "<parameter=b>yes</parameter><parameter=x>[1]</parameter></function></tool_call>",
        F.glm: "<tool_call>f<arg_key>n</arg_key><arg_value>3</arg_value><arg_key>s</arg_key><arg_value>3</arg_value>"
        "<arg_key>b</arg_key><arg_value>yes</arg_value><arg_key>x</arg_key><arg_value>[1]</arg_value></tool_call>",
    }[tool_format]
    properties = {"n": {"type": "integer"}, "s": {"type": "string"}, "b": {"type": "boolean"}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}}]
    (call,) = read(tool_format, text, tools=tools).calls
    assert call.arguments == {"n": 3, "s": "3", "b": "yes", "x": "[1]"}


CALL = '<tool_call>{"name": "bash", "arguments": {"command": "ls -l"}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "num_calls"),
    [
        (f"<think>\nrun {CALL}?\n</think>\n\n{CALL}", f"run {CALL}?", "", 1),
        (f"perhaps {CALL}</think>Done.", f"perhaps {CALL}", "Done.", 0),
        ("<think></think>Done.", "", "Done.", 0),
        ("Done.", "", "Done.", 0),
    ],
)
def test_nothing_in_reasoning_is_a_call(text: str, reasoning: str, content: str, num_calls: int) -> None:
    spoken = read(F.hermes, text, reasoning=Reasoning.think)
    assert (spoken.reasoning, spoken.content, len(spoken.calls)) == (reasoning, content, num_calls)


def test_reasoning_that_never_ends_runs_nothing() -> None:
    text = f"<think>run {CALL}"
    assert isinstance(parse(F.hermes, text, complete=True, reasoning=Reasoning.think), Malformed)
    assert isinstance(parse(F.hermes, text, complete=False, reasoning=Reasoning.think), Malformed)
    assert isinstance(parse(F.line, "[THINK]done", complete=True, reasoning=Reasoning.brackets), Malformed)
    assert parse(F.line, "[THINK]x[/THINK]\ndone", complete=True, reasoning=Reasoning.brackets) == Finished()
