"""Chat templates as exact token ids, without torch: the prompt once, then only what is appended between turns.

Text that comes from outside (instructions, observations) is encoded with special tokens taken as plain text, so that a
sandbox that prints `<|im_end|>` cannot end a message.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from agentrl.errors import UserError

# Stands for a message's content while the template is rendered; private-use characters, so no template knows them.
_SLOT = "\ue000{}\ue001"


@dataclass(frozen=True)
class Message:
    """One chat message. Roles are those of the model's template: system, user, assistant, maybe tool."""

    role: str
    content: str
    fields: dict[str, Any] = field(default_factory=dict, hash=False)
    """What else the template may look at: `tool_calls` of an assistant, `tool_call_id` and `name` of a tool."""


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """A conversation, or the end of one, as the template writes it."""

    ids: list[int]
    text: str | None
    """Of the whole conversation, ending where the assistant's next message begins; None: what it follows is unknown."""


class Chat:
    """One model's tokenizer and chat template."""

    def __init__(self, tokenizer: Tokenizer, template: jinja2.Template, variables: dict[str, Any], stop_ids: set[int]):
        self._template_tokenizer = tokenizer
        self._content_tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self._content_tokenizer.encode_special_tokens = True
        self._foreign_tokenizer = _without_added_tokens(tokenizer)
        self._template = template
        self._variables = variables
        self.vocab_size: int = tokenizer.get_vocab_size(with_added_tokens=True)
        self.end_id = self._tail([Message("user", "?"), Message("assistant", "!")], generate=False)[0]
        """Id with which the template ends an assistant message."""
        self.stop_ids: tuple[int, ...] = tuple(sorted(stop_ids | {self.end_id}))
        """Ids at which sampling stops: the end of a message and the model's own end-of-sequence ids."""

    @classmethod
    def load(cls, folder: Path) -> Chat:
        """Read tokenizer.json, tokenizer_config.json and the template from a Hugging Face folder. Raises UserError."""
        tokenizer_file = folder / "tokenizer.json"
        if not tokenizer_file.is_file():
            raise UserError(f"{folder}: no tokenizer.json", hint="model.path must be a folder in Hugging Face layout")
        settings = _read_json(folder / "tokenizer_config.json")
        source = _template_source(folder, settings)
        if source is None:
            raise UserError(
                f"{folder}: no chat template", hint="add chat_template.jinja or tokenizer_config.json's key"
            )
        tokenizer = Tokenizer.from_file(str(tokenizer_file))
        variables = {name: _token_text(settings.get(name)) for name in ("bos_token", "eos_token", "pad_token")}
        return cls(
            tokenizer,
            template_environment().from_string(source),
            variables,
            _model_stop_ids(folder, tokenizer, variables),
        )

    def render(
        self,
        messages: Sequence[Message],
        *,
        after: str | None = "",
        known: int = 0,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Rendered | None:
        """What the template adds to `after`, which stands for the first `known` of the messages.

        None if the conversation, rendered anew, does not begin with that text: the template writes what lies behind
        otherwise than it was, so nothing may be appended to it. With `after` None the text before is not known, and
        the rest is what the template puts behind any assistant message.

        Raises UserError if the template refuses the messages.
        """
        if after is None:
            ids = self._tail([*_ANY_BEGINNING, *messages[known:]], generate=True)
            return Rendered(ids=ids, text=None)
        contents = [message.content for message in messages]
        text = self._text(messages, contents, tools)
        if not text.startswith(after):
            return None
        new = range(known, len(messages))
        for slots in (new, [index for index in new if messages[index].role != "assistant"]):
            marked = self._text(messages, [_SLOT.format(i) if i in slots else c for i, c in enumerate(contents)], tools)
            for change in _CHANGES:
                changed = list(map(change, contents))
                if marked.startswith(after) and _filled(marked, changed, slots) == text:
                    return Rendered(ids=self._encode(marked[len(after) :], messages, changed), text=text)
        return Rendered(ids=self._encode_found(text[len(after) :], messages[known:]), text=text)

    def knows_tools(self) -> bool:
        """Whether the template writes offered tools into the prompt."""
        messages = [Message("user", "?")]
        offer = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}]
        try:
            return self._text(messages, ["?"], offer) != self._text(messages, ["?"], ())
        except UserError:
            return True  # it looks at them, and wants more of them

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Ids of the whole conversation so far, ending where the assistant's next message begins."""
        return self._encode(self._render(messages, generate=True), messages)

    def bridge(self, role: str, content: str, *, closed: bool = True) -> list[int]:
        """Ids between the end of a sampled assistant message and the next one: message end, observation, new turn.

        `closed` says that the sampled ids already end with `end_id`, which is then not repeated.
        """
        messages = [Message("user", "?"), Message("assistant", "!"), Message(role, content)]
        ids = self._tail(messages, generate=True)
        return ids[1:] if closed else ids

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; what looks like a special token is text."""
        return list(self._content_tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Text of ids, special tokens left out. With `special` only a stop id at the very end is."""
        kept = list(ids[:-1]) if special and ids and ids[-1] in self.stop_ids else list(ids)
        return str(self._template_tokenizer.decode(kept, skip_special_tokens=not special))

    def _tail(self, messages: Sequence[Message], *, generate: bool) -> list[int]:
        """Ids after the first assistant message's content."""
        text = self._render(messages, generate=generate)
        return self._encode(text.split(_SLOT.format(1), 1)[1], messages)

    def _render(self, messages: Sequence[Message], *, generate: bool) -> str:
        return self._text(messages, [_SLOT.format(i) for i in range(len(messages))], (), generate=generate)

    def _text(
        self,
        messages: Sequence[Message],
        contents: Sequence[str],
        tools: Sequence[Mapping[str, Any]],
        *,
        generate: bool = True,
    ) -> str:
        given = [{"role": m.role, "content": c, **m.fields} for m, c in zip(messages, contents, strict=True)]
        offered = {"tools": tools} if tools else {}
        try:
            return self._template.render(messages=given, add_generation_prompt=generate, **offered, **self._variables)
        except (jinja2.TemplateError, TypeError, KeyError, IndexError) as error:
            roles = ", ".join(m.role for m in messages[:12]) + (", ..." if len(messages) > 12 else "")
            raise UserError(
                f"the model's chat template refuses the roles {roles}: {error}",
                hint="change agent.observation_role or agent.system_prompt",
            ) from error

    def _encode(self, rendered: str, messages: Sequence[Message], contents: Sequence[str] | None = None) -> list[int]:
        """Encode template text with its special tokens and, at each slot, the message's content without any.

        `contents`: as the template writes them, if that is not as they are.
        """
        ids: list[int] = []
        for index, message in enumerate(messages):
            before, slot, after = rendered.partition(_SLOT.format(index))
            if slot:
                content = message.content if contents is None else contents[index]
                ours = message.role in ("system", "assistant")
                tokenizer = self._content_tokenizer if ours else self._foreign_tokenizer
                ids += self._template_tokenizer.encode(before, add_special_tokens=False).ids
                ids += tokenizer.encode(content, add_special_tokens=False).ids
                rendered = after
        ids += self._template_tokenizer.encode(rendered, add_special_tokens=False).ids
        return ids

    def _encode_found(self, text: str, messages: Sequence[Message]) -> list[int]:
        """As `_encode`, where contents have to be looked for in the text."""
        marked, wanted = "", [message.content.strip() for message in messages]
        for index, content in enumerate(wanted):
            if content and content in text:
                before, _, text = text.partition(content)
                marked += before + _SLOT.format(index)
        return self._encode(marked + text, messages, wanted)


def _without_added_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """The same, to which what looks like an added token is text: many families' turn and tool tokens are added ones
    that are not marked special, and output that prints them must not begin a turn."""
    made = json.loads(tokenizer.to_str())
    for token in made["added_tokens"]:
        token["special"] = True
    strict = Tokenizer.from_str(json.dumps(made))
    strict.encode_special_tokens = True
    return strict


def _filled(marked: str, contents: Sequence[str], slots: Iterable[int]) -> str:
    for index in slots:
        marked = marked.replace(_SLOT.format(index), contents[index])
    return marked


_ANY_BEGINNING = (Message("user", "?"), Message("assistant", "!"))

_CHANGES: tuple[Callable[[str], str], ...] = (
    lambda content: content,
    str.strip,
    lambda content: json.dumps(content, ensure_ascii=False)[1:-1],
)
"""What templates do to contents: nothing, mostly; Llama's trim them, and write those of tools as JSON."""


def template_environment() -> ImmutableSandboxedEnvironment:
    """The Jinja environment that Hugging Face templates are written for."""

    def raise_exception(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = raise_exception
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    return environment


def _template_source(folder: Path, settings: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default")
    return template


def _model_stop_ids(folder: Path, tokenizer: Tokenizer, variables: dict[str, Any]) -> set[int]:
    """End-of-sequence ids that the model's own files name."""
    ids: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        value = _read_json(folder / name).get("eos_token_id")
        ids.update([value] if isinstance(value, int) else value or [])
    if variables["eos_token"] and (eos := tokenizer.token_to_id(variables["eos_token"])) is not None:
        ids.add(eos)
    return ids


def _token_text(token: Any) -> str:
    """tokenizer_config.json writes a special token as a string or as an object with `content`."""
    if isinstance(token, dict):
        return str(token.get("content", ""))
    return token or ""


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{file}: not JSON: {error}") from error
    return data
