"""Families of tool calls, from a message's text to what it says: pure functions, each of a published format.

For execution only: ids stay the truth. Whatever does not follow its format exactly is a problem that is told, never a
guess: a call that was guessed would be rewarded as if the policy had made it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.rollout.config import Reasoning, ToolFormat

Tools = Sequence[Mapping[str, Any]]
"""Offered tools, as OpenAI's API writes them. Formats without types take those of arguments from there."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One tool call."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Spoken:
    """What a message says."""

    content: str
    """Text that is neither reasoning nor a call."""
    calls: tuple[Call, ...] = ()
    reasoning: str = ""
    problem: str | None = None
    """Why it cannot be read; there are no calls then."""


class _Unreadable(ValueError):
    """A call that does not follow its format; the message says how."""


def read(tool_format: ToolFormat, text: str, *, reasoning: Reasoning = Reasoning.none, tools: Tools = ()) -> Spoken:
    """What a message says. A format without tool calls (line, fenced) is all content."""
    thought, rest, closed = split_reasoning(reasoning, text)
    if not closed:
        return Spoken(content="", reasoning=thought, problem="the reasoning was not closed")
    reader = _READERS.get(tool_format)
    if reader is None:
        return Spoken(content=rest, reasoning=thought)
    try:
        content, calls = reader(rest, tools)
    except _Unreadable as error:
        return Spoken(content=rest, reasoning=thought, problem=str(error))
    return Spoken(content=content, calls=tuple(calls), reasoning=thought)


def split_reasoning(reasoning: Reasoning, text: str) -> tuple[str, str, bool]:
    """(reasoning, the rest, whether it was closed). Templates may have opened it in the prompt, so its start is
    optional: `<think>` of DeepSeek-R1 and Qwen3, `[THINK]` of Magistral (their chat templates)."""
    if reasoning is Reasoning.none:
        return "", text, True
    start, end = _TAGS[reasoning]
    thought, found, rest = text.partition(end)
    if found:
        return thought.strip().removeprefix(start).strip(), rest.lstrip("\n"), True
    if text.lstrip().startswith(start):
        return text.strip().removeprefix(start).strip(), "", False
    return "", text, True


_TAGS = {Reasoning.think: ("<think>", "</think>"), Reasoning.brackets: ("[THINK]", "[/THINK]")}


def _hermes(text: str, tools: Tools) -> tuple[str, list[Call]]:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number.

    Source: the Hermes function-calling prompts (github.com/NousResearch/Hermes-Function-Calling), which the chat
    templates of Qwen2.5 and Qwen3 took over.
    """
    content, bodies = _tagged(text, "<tool_call>", "</tool_call>")
    return content, [_json_call(body, "arguments") for body in bodies]


def _qwen_coder(text: str, tools: Tools) -> tuple[str, list[Call]]:
    """`<tool_call><function=NAME><parameter=KEY>VALUE</parameter>...</function></tool_call>`; values are text, with one
    line break behind the opening and before the closing tag.

    Source: the chat template of Qwen3-Coder (Qwen/Qwen3-Coder-30B-A3B-Instruct).
    """
    content, bodies = _tagged(text, "<tool_call>", "</tool_call>")
    calls = []
    for body in bodies:
        function = re.fullmatch(r"\s*<function=([^>\s]+)>(.*)</function>\s*", body, re.DOTALL)
        if function is None:
            raise _Unreadable("the tool call must be <function=NAME>...</function>")
        name, inside = function[1], function[2]
        pairs = re.findall(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", inside, re.DOTALL)
        _nothing_left(re.sub(r"<parameter=[^>\s]+>.*?</parameter>", "", inside, flags=re.DOTALL), "parameters")
        calls.append(Call(name=name, arguments=_typed(name, pairs, tools)))
    return content, calls


def _glm(text: str, tools: Tools) -> tuple[str, list[Call]]:
    """`<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>...</tool_call>`, line breaks between them;
    values that are not text are JSON.

    Source: the chat templates of GLM-4.5 and GLM-4.6 (zai-org).
    """
    content, bodies = _tagged(text, "<tool_call>", "</tool_call>")
    calls = []
    for body in bodies:
        name, _, inside = body.partition("<arg_key>")
        inside = "<arg_key>" + inside if _ else ""
        pair = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
        _nothing_left(pair.sub("", inside), "arguments")
        if not re.fullmatch(r"[\w.-]+", name.strip()):
            raise _Unreadable("the tool call must begin with the tool's name")
        pairs = [(key.strip(), value) for key, value in pair.findall(inside)]
        calls.append(Call(name=name.strip(), arguments=_typed(name.strip(), pairs, tools)))
    return content, calls


def _llama(text: str, tools: Tools) -> tuple[str, list[Call]]:
    """The whole message is `{"name": ..., "parameters": {...}}`, several separated by semicolons; `<|python_tag|>` may
    stand before them.

    Source: Meta's prompt format of Llama 3.1 to 3.3 (llama.com/docs, "JSON based tool calling"; llama-models).
    """
    tag, body = "<|python_tag|>", text.strip()
    if not body.startswith((tag, '{"name"')):
        return text, []
    calls: list[Call] = []
    rest = body.removeprefix(tag).strip()
    while rest:
        call, rest = _leading_json(rest)
        calls.append(_call_of(call, "parameters"))
        rest = rest.strip().removeprefix(";").strip()
    if not calls:
        raise _Unreadable(f"nothing follows {tag}")
    return "", calls


def _mistral(text: str, tools: Tools) -> tuple[str, list[Call]]:
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, or `[TOOL_CALLS]NAME[ARGS]{...}` once for each call (with
    `[CALL_ID]ID` before `[ARGS]` in one version).

    Source: mistral-common, tokenizers v2 to v7, and v11 on.
    """
    content, *bodies = text.split("[TOOL_CALLS]")
    calls: list[Call] = []
    for body in bodies:
        if "[ARGS]" in body:
            name, _, arguments = body.partition("[ARGS]")
            found, rest = _leading_json(arguments.strip())
            calls.append(_call_of({"name": name.partition("[CALL_ID]")[0].strip(), "arguments": found}, "arguments"))
        else:
            listed, rest = _leading_json(body.strip())
            if not isinstance(listed, list) or not listed:
                raise _Unreadable("[TOOL_CALLS] must be followed by a list of calls")
            calls += [_call_of(one, "arguments") for one in listed]
        _nothing_left(rest, "calls")
    return content.strip() if bodies else content, calls


def _deepseek(text: str, tools: Tools) -> tuple[str, list[Call]]:
    """Between `<｜tool▁calls▁begin｜>` and `<｜tool▁calls▁end｜>` any number of calls between tags of their own, of the
    form `function<｜tool▁sep｜>NAME`, then fenced JSON (V3, R1), or `NAME<｜tool▁sep｜>{...}` (V3.1).

    Source: the chat templates of DeepSeek-V3, R1-0528 and V3.1 (deepseek-ai).
    """
    content, blocks = _tagged(text, "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
    calls = []
    for block in blocks:
        between, bodies = _tagged(block, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
        _nothing_left(between, "calls")
        for body in bodies:
            first, separator, second = body.partition("<｜tool▁sep｜>")
            if not separator:
                raise _Unreadable("the tool call lacks its <｜tool▁sep｜>")
            fenced = re.fullmatch(r"\s*([\w.-]+)\s*```json\s*\n(.*)\n\s*```\s*", second, re.DOTALL)
            name, arguments = (fenced[1], fenced[2]) if fenced else (first.strip(), second)
            calls.append(_call_of({"name": name, "arguments": _json(arguments)}, "arguments"))
    return content, calls


_READERS: dict[ToolFormat, Callable[[str, Tools], tuple[str, list[Call]]]] = {
    ToolFormat.hermes: _hermes,
    ToolFormat.qwen_coder: _qwen_coder,
    ToolFormat.glm: _glm,
    ToolFormat.llama: _llama,
    ToolFormat.mistral: _mistral,
    ToolFormat.deepseek: _deepseek,
}


def has_calls(tool_format: ToolFormat) -> bool:
    """Whether messages of this format can call tools by name."""
    return tool_format in _READERS


def _tagged(text: str, start: str, end: str) -> tuple[str, list[str]]:
    """(what stands outside, what stands in each pair of tags). Raises _Unreadable for a tag without its partner."""
    outside, *parts = text.split(start)
    bodies = []
    for part in parts:
        body, found, behind = part.partition(end)
        if not found:
            raise _Unreadable(f"{start} is not closed")
        bodies.append(body)
        outside += behind
    if end in outside:
        raise _Unreadable(f"{end} closes nothing")
    return outside.strip() if bodies else outside, bodies


def _json_call(body: str, key: str) -> Call:
    return _call_of(_json(body), key)


def _call_of(found: Any, key: str) -> Call:
    """Hermes' arguments, and Llama's parameters, may be left out where there are none."""
    if not isinstance(found, dict) or not isinstance(found.get("name"), str) or not found["name"]:
        raise _Unreadable(f'the tool call must be {{"name": ..., "{key}": {{...}}}}')
    arguments = found.get(key, {})
    if not isinstance(arguments, dict):
        raise _Unreadable(f"{key} of the tool call must be an object")
    return Call(name=found["name"], arguments=arguments)


def _json(text: str) -> Any:
    try:
        return json.loads(text, strict=False)  # models write line breaks in strings as they are
    except ValueError as error:
        raise _Unreadable(f"the tool call is not JSON: {error}") from error


def _leading_json(text: str) -> tuple[Any, str]:
    """The value that a text begins with, and what follows it."""
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(text)
    except ValueError as error:
        raise _Unreadable(f"the tool call is not JSON: {error}") from error
    return value, text[end:]


def _nothing_left(text: str, what: str) -> None:
    if text.strip():
        raise _Unreadable(f"text stands where only {what} may: {text.strip()[:40]!r}")


def _typed(name: str, pairs: Iterable[tuple[str, str]], tools: Tools) -> dict[str, Any]:
    """Arguments that were written as text, with the types that the tool's schema gives them; text if it gives none."""
    functions = [tool.get("function", {}) for tool in tools]
    schema = next((one.get("parameters") or {} for one in functions if one.get("name") == name), {})
    properties = schema.get("properties") or {}
    arguments: dict[str, Any] = {}
    for key, value in pairs:
        kind = (properties.get(key) or {}).get("type", "string")
        try:
            arguments[key] = value if kind == "string" else json.loads(value)
        except ValueError:
            arguments[key] = value
    return arguments
