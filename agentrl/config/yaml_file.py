"""One YAML file of the user, read as nodes with line numbers, before Hydra sees it.

YAML 1.1 quietly changes what people write: `no` is false, `010` is 8, `01:30` is 90, of two equal keys the last wins.
By the time values are merged the text is gone, so such traps, and keys that do not exist, are found here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import grammar_parser
from omegaconf._utils import get_yaml_loader
from omegaconf.errors import GrammarParseError

from agentrl.config.fields import REPLACED, Leaf, Schema, schema
from agentrl.errors import UserError

_OCTAL = re.compile(r"[-+]?0[0-7_]+")
_STANDARD_TAG = "tag:yaml.org,2002:"
_SCALAR_TAGS = {_STANDARD_TAG + name for name in ("str", "int", "float", "bool", "null")}
_TAGS: dict[type[yaml.Node], set[str]] = {
    yaml.ScalarNode: _SCALAR_TAGS,
    yaml.SequenceNode: {_STANDARD_TAG + "seq"},
    yaml.MappingNode: {_STANDARD_TAG + "map"},
}
_MAX_DEPTH = 20
_DEPTH_HINT = "settings are at most a few levels deep"
_KEY_TAGS = {_STANDARD_TAG + name for name in ("str", "int", "float", "bool", "merge")}


@dataclass(frozen=True)
class Mark:
    """Where a key got a value: `conf/exp.yaml:7`, or the override; and the value as it was written."""

    where: str
    raw: str


@dataclass(frozen=True)
class Entry:
    """One line of a defaults list."""

    where: str
    group: str | None
    """None for a config by name, such as `agentrl` or `_self_`."""
    name: str
    """The option, or the config's name."""
    absolute: bool
    """Named from the top of the search path (`/model`), also in a file that lies in a group."""
    optional: bool
    """Whether it may be missing."""


@dataclass(frozen=True)
class YamlFile:
    """A file that is YAML and holds a mapping; nothing else is known about it yet."""

    path: Path
    shown: str
    """The path as messages print it."""
    root: yaml.MappingNode

    def has_keys(self) -> bool:
        """Whether it sets anything itself, beside its defaults list."""
        return any(key.value != "defaults" for key, _ in self.root.value)

    def where(self, node: yaml.Node) -> str:
        return f"{self.shown}:{node.start_mark.line + 1}"

    def defaults(self) -> list[Entry]:
        """Its defaults list. Raises UserError if it has none, or one that is not a list of entries."""
        if not self._defaults_nodes():
            raise UserError(f"{self.shown}: has no defaults list", hint="begin with `defaults: [agentrl, _self_]`")
        return self.optional_defaults()

    def optional_defaults(self) -> list[Entry]:
        """Its defaults list, [] if it has none. Raises UserError if it is not a list of entries."""
        nodes = self._defaults_nodes()
        if not nodes:
            return []
        if not isinstance(nodes[0], yaml.SequenceNode) or not nodes[0].value:
            raise UserError(f"{self.where(nodes[0])}: defaults is not a list", hint="write `- agentrl`, `- _self_`")
        return [self._entry(node) for node in nodes[0].value]

    def names_itself(self) -> bool:
        """Whether its defaults list says where its own values stand."""
        return any(entry.name == "_self_" and entry.group is None for entry in self.optional_defaults())

    def _defaults_nodes(self) -> list[yaml.Node]:
        return [value for key, value in self.root.value if key.value == "defaults"]

    def _entry(self, node: yaml.Node) -> Entry:
        where = self.where(node)
        if isinstance(node, yaml.ScalarNode):
            *words, name = node.value.split() or [""]
            return Entry(where, None, name.lstrip("/"), name.startswith("/"), "optional" in words)
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        if len(pairs) != 1 or not all(isinstance(part, yaml.ScalarNode) for part in pairs[0]):
            raise UserError(
                f"{where}: not an entry of a defaults list",
                hint="write `- name`, `- group: option` or `- override /group: option`",
            )
        *words, group = pairs[0][0].value.split() or [""]
        return Entry(where, group.lstrip("/"), pairs[0][1].value, group.startswith("/"), "optional" in words)

    def marks(self, package: str) -> dict[str, Mark]:
        """Where each of its keys is set, under `package` (the dotted key at which the file is merged, or '').

        Raises UserError at the first unknown key and at the first value that YAML reads as something else.
        """
        return dict(self._walk(package, self.root, schema()))

    def _walk(self, prefix: str, mapping: yaml.MappingNode, known: Schema) -> Iterator[tuple[str, Mark]]:
        for key_node, value in mapping.value:
            if key_node.tag == _STANDARD_TAG + "merge":
                for merged in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    yield from self._walk(prefix, merged, known)
                continue
            name = str(key_node.value)
            where = self.where(key_node)
            if name == "defaults" and mapping is self.root:
                continue
            if "." in name:
                raise UserError(f"{where}: '{name}': dots do not nest in YAML", hint=_nested(name))
            key = f"{prefix}.{name}" if prefix else name
            yield key, Mark(where, _raw(value))
            yield from self._walk_value(key, where, value, known)

    def _walk_value(self, key: str, where: str, value: yaml.Node, known: Schema) -> Iterator[tuple[str, Mark]]:
        if key in known.sections:
            if isinstance(value, yaml.MappingNode):
                yield from self._walk(key, value, known)
            elif not _is_interpolation(value):
                raise UserError(f"{where}: {key} has settings below it, not a value", hint="see agentrl show --schema")
        elif key in known.leaves:
            self._check_leaf(known.leaves[key], value)
        else:
            raise unknown_key(key, where, known)

    def _check_leaf(self, leaf: Leaf, value: yaml.Node) -> None:
        items = value.value if leaf.many and isinstance(value, yaml.SequenceNode) else [value]
        for item in items:
            if isinstance(item, yaml.ScalarNode) and item.style is None and (problem := _trap(leaf, item)):
                raise UserError(f"{self.where(item)}: {leaf.key}: {problem[0]}", hint=problem[1])


def read_yaml(path: Path, shown: str) -> YamlFile:
    """Read a file. Raises UserError if it cannot be read, is not YAML, is empty or holds no mapping."""
    try:
        root = _compose(path, shown)
    except RecursionError as error:
        raise UserError(f"{shown}: is nested too deeply", hint=_DEPTH_HINT) from error
    if root is None:
        raise UserError(f"{shown}: is empty", hint="begin with `defaults: [agentrl, _self_]`")
    if not isinstance(root, yaml.MappingNode):
        raise UserError(f"{shown}: holds no settings at its top level", hint="expected lines like `key: value`")
    file = YamlFile(path, shown, root)
    _check_structure(file, root, set(), 0)
    return file


def _compose(path: Path, shown: str) -> yaml.Node | None:
    """The file's nodes, None if it is empty. Raises UserError if it is no regular file, unreadable or not YAML."""
    if path.exists() and not path.is_file():  # a FIFO never ends
        raise UserError(f"{shown}: is not a regular file")
    try:
        root: yaml.Node | None = yaml.compose(path.read_text(encoding="utf-8-sig"), Loader=get_yaml_loader())
    except UnicodeDecodeError as error:
        raise UserError(f"{shown}: is not UTF-8 text") from error
    except OSError as error:
        raise UserError(f"{shown}: cannot be read: {error.strerror}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise UserError(f"{shown}{line}: is not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{shown}: is not YAML: {' '.join(str(error).split())}") from error
    return root


def _check_structure(file: YamlFile, node: yaml.Node, done: set[int], depth: int) -> None:
    """Refuses what reading the file into values would refuse in many lines, or do in silence. Visits a node once."""
    if id(node) in done:
        return
    done.add(id(node))
    if depth > _MAX_DEPTH:  # Hydra reads the file again and would end in a RecursionError
        raise UserError(f"{file.where(node)}: is nested too deeply", hint=_DEPTH_HINT)
    if node.tag not in _TAGS[type(node)]:
        raise UserError(f"{file.where(node)}: the tag {node.tag.removeprefix(_STANDARD_TAG)} means nothing here")
    if isinstance(node, yaml.ScalarNode):
        _check_interpolation(file, node)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check_structure(file, item, done, depth + 1)
    else:
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag not in _KEY_TAGS:
                raise UserError(f"{file.where(key)}: a key must be a word")
            if key.value in seen:
                raise UserError(f"{file.where(key)}: '{key.value}' is set twice", hint="YAML would keep only the last")
            seen.add(key.value)
            _check_structure(file, value, done, depth + 1)


def _check_interpolation(file: YamlFile, node: yaml.ScalarNode) -> None:
    if "${" not in node.value:
        return
    try:
        grammar_parser.parse(node.value)
    except GrammarParseError as error:
        raise UserError(f"{file.where(node)}: {node.value} is not a complete ${{...}}") from error


def unknown_key(key: str, where: str, known: Schema) -> UserError:
    """The error for a key that the schema does not have."""
    if key == "hydra" or key.startswith(("hydra.", "hydra/")):
        return UserError(f"{where}: '{key}': Hydra's own settings have no effect here", hint="remove it")
    if key in REPLACED:
        return UserError(f"{where}: '{key}' is gone", hint=REPLACED[key])
    nearest = known.nearest(key)
    hint = f"did you mean '{nearest}'?" if nearest else "agentrl show --schema lists all keys"
    return UserError(f"{where}: unknown key '{key}'", hint=hint)


def _trap(leaf: Leaf, node: yaml.ScalarNode) -> tuple[str, str] | None:
    """What is wrong with a plain scalar whose text means something else in YAML, and what to write instead."""
    raw, tag = node.value, node.tag.removeprefix(_STANDARD_TAG)
    if tag == "str" and leaf.optional and raw == "None":
        return "None is the text 'None' in YAML", "write null for no value"
    if tag not in ("bool", "int", "float") or leaf.type is bool:
        return None
    value: Any = yaml.load(raw, Loader=get_yaml_loader())
    means = str(value).lower() if tag == "bool" else str(value)
    if leaf.type in (int, float):
        return _number_trap(raw, means) if tag != "bool" else None
    if means != raw:
        return f"{raw} means {means} in YAML", f"write '{raw}' in quotes if the text is meant"
    return None


def _number_trap(raw: str, means: str) -> tuple[str, str] | None:
    if ":" in raw:
        return f"{raw} means {means} in YAML (base 60)", f"write {means} if that is meant"
    if _OCTAL.fullmatch(raw):
        decimal = re.sub(r"^([-+]?)0+", r"\1", raw)
        return f"{raw} means {means} in YAML (octal)", f"write {decimal} or {means}"
    return None


def _nested(name: str) -> str:
    """`a.b` as it must be written in YAML, on one line."""
    first, *rest = name.split(".")
    return f"write {first}: {{{': {'.join(rest)}: ...{'}' * len(rest)}"


def _is_interpolation(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and "${" in node.value


def _raw(node: yaml.Node) -> str:
    """A value as it was written, for messages."""
    if isinstance(node, yaml.ScalarNode):
        return str(node.value) or ("''" if node.style else "")
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"
