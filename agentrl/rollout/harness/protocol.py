"""Chat completions as OpenAI's API has them: requests read, answers written. Pure functions over JSON values.

What a request asks for is done, or refused with HTTP 400, or named in `Asked.ignored`: how tokens are sampled is the
run's decision alone, because their log-probs are those of its policy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.rollout.chat import Message
from agentrl.rollout.tool_formats import Call

Json = dict[str, Any]

_OBEYED = {"model", "messages", "tools", "tool_choice", "max_tokens", "max_completion_tokens", "stream"}
_READ = {"stream_options"}
_REFUSED: dict[str, Callable[[Any], bool]] = {
    "n": lambda value: value == 1,
    "stop": lambda value: not value,
    "logprobs": lambda value: not value,
    "top_logprobs": lambda value: not value,
    "logit_bias": lambda value: not value,
    "functions": lambda value: not value,
    "function_call": lambda value: value in ("none", "auto"),
    "response_format": lambda value: isinstance(value, dict) and value.get("type") == "text",
    "modalities": lambda value: value == ["text"],
    "tool_choice": lambda value: value in ("none", "auto"),
}
"""What no answer can be given to, unless the value asks for nothing."""


class Refused(ValueError):
    """A request that cannot be answered as it stands; the message is for whoever wrote the harness."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the policy said, for a harness."""

    text: str
    """As the chat template is to have it again: special tokens and all."""
    content: str
    reasoning: str
    calls: tuple[tuple[str, Call], ...] = ()
    """Each with its id."""
    finish: str
    """stop, length or tool_calls."""
    num_prompt: int
    num_sampled: int

    @property
    def key(self) -> Key:
        return _key(self.content, [(id_, call.name, call.arguments) for id_, call in self.calls])


Key = tuple[str, tuple[str, ...]]
"""How an answer is known again in a later request."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request."""

    messages: tuple[Message, ...]
    keys: tuple[Key | None, ...]
    """Of the assistant's messages: by which an `Answer` is known again."""
    tools: tuple[Json, ...] = ()
    max_tokens: int | None = None
    stream: bool = False
    with_usage: bool = False
    ignored: frozenset[str] = field(default_factory=frozenset)


def read_request(body: Any, *, model: str, tool_role: str) -> Asked:
    """`tool_role`: the chat template's role for what tools answered. Raises Refused."""
    if not isinstance(body, dict):
        raise Refused("the body must be a JSON object")
    if body.get("model") != model:
        raise Refused(f"there is no model {body.get('model')!r}: this endpoint serves {model!r}", status=404)
    given = {key: value for key, value in body.items() if value is not None}
    for key, harmless in _REFUSED.items():
        if key in given and not harmless(given[key]):
            raise Refused(f"{key}={json.dumps(given[key])[:80]} is not possible here")
    messages = given.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refused("messages must be a list that is not empty")
    read = [_read_message(message, tool_role) for message in messages]
    options = given.get("stream_options")
    return Asked(
        messages=tuple(message for message, _ in read),
        keys=tuple(key for _, key in read),
        tools=() if given.get("tool_choice") == "none" else _read_tools(given.get("tools", [])),
        max_tokens=_read_max_tokens(given),
        stream=bool(given.get("stream", False)),
        with_usage=isinstance(options, dict) and bool(options.get("include_usage")),
        ignored=frozenset(given) - _OBEYED - _READ - set(_REFUSED),
    )


def completion(answer: Answer, *, id_: str, model: str, created: int) -> Json:
    """The answer to a request without `stream`."""
    choice = {"index": 0, "message": _message(answer), "finish_reason": answer.finish, "logprobs": None}
    return {**_head("chat.completion", id_, model, created), "choices": [choice], "usage": _usage(answer)}


def chunks(answer: Answer, *, id_: str, model: str, created: int, with_usage: bool) -> Iterator[Json]:
    """The same for a request with `stream`: the whole message in one piece, since it is read as a whole."""
    head = _head("chat.completion.chunk", id_, model, created)
    message = _message(answer)
    for index, call in enumerate(message.get("tool_calls", [])):
        call["index"] = index
    yield {**head, "choices": [{"index": 0, "delta": message, "finish_reason": None}]}
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": answer.finish}]}
    if with_usage:
        yield {**head, "choices": [], "usage": _usage(answer)}


def problem(message: str, status: int) -> Json:
    """The body of an error."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def models(model: str) -> Json:
    return {"object": "list", "data": [{"id": model, "object": "model", "created": 0, "owned_by": "agentrl"}]}


def _head(kind: str, id_: str, model: str, created: int) -> Json:
    return {"id": id_, "object": kind, "created": created, "model": model}


def _message(answer: Answer) -> Json:
    message: Json = {"role": "assistant", "content": answer.content or (None if answer.calls else "")}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [
            {"id": id_, "type": "function", "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
            for id_, call in answer.calls
        ]
    return message


def _usage(answer: Answer) -> Json:
    total = answer.num_prompt + answer.num_sampled
    return {"prompt_tokens": answer.num_prompt, "completion_tokens": answer.num_sampled, "total_tokens": total}


def _key(content: str, calls: Sequence[tuple[str, str, Any]]) -> Key:
    """White space around a message is of no account: clients trim it."""
    return content.strip(), tuple(json.dumps(call, sort_keys=True) for call in calls)


def _read_message(message: Any, tool_role: str) -> tuple[Message, Key | None]:
    if not isinstance(message, dict):
        raise Refused("each message must be an object")
    role, content = message.get("role"), _read_content(message.get("content"))
    match role:
        case "system" | "developer":
            return Message("system", content), None
        case "user":
            return Message("user", content), None
        case "tool":
            names = ("tool_call_id", "name") if tool_role == "tool" else ()
            return Message(tool_role, content, {name: message[name] for name in names if message.get(name)}), None
        case "assistant":
            calls = [_read_call(call) for call in message.get("tool_calls") or []]
            functions = [
                {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
                for id_, name, arguments in calls
            ]
            return Message("assistant", content, {"tool_calls": functions} if calls else {}), _key(content, calls)
        case _:
            raise Refused(f"there is no role {role!r}")


def _read_content(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(isinstance(p, dict) and p.get("type") == "text" for p in content):
        return "".join(str(part.get("text", "")) for part in content)
    raise Refused("content must be text, or parts of type text")


def _read_call(call: Any) -> tuple[str, str, Any]:
    try:
        function = call["function"]
        return str(call["id"]), str(function["name"]), json.loads(function["arguments"] or "{}")
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(f"a tool call in messages is malformed: {error!r}") from error


def _read_tools(tools: Any) -> tuple[Json, ...]:
    if not isinstance(tools, list):
        raise Refused("tools must be a list")
    for tool in tools:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise Refused("each tool must be a function with a name")
    return tuple(tools)


def _read_max_tokens(given: Json) -> int | None:
    found = [given[key] for key in ("max_tokens", "max_completion_tokens") if key in given]
    if any(not isinstance(value, int) or value < 1 for value in found):
        raise Refused("max_tokens must be a whole number of at least 1")
    return min(found, default=None)
