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
from omegaconf._utils import get_yaml_loader

from agentrl.config.fields import Leaf, Schema, schema
from agentrl.errors import UserError

_OCTAL = re.compile(r"[-+]?0[0-7_]+")
_STANDARD_TAG = "tag:yaml.org,2002:"


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
    override: bool
    optional: bool


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
        nodes = [value for key, value in self.root.value if key.value == "defaults"]
        if not nodes:
            raise UserError(f"{self.shown}: has no defaults list", hint="begin with `defaults: [agentrl, _self_]`")
        if not isinstance(nodes[0], yaml.SequenceNode) or not nodes[0].value:
            raise UserError(f"{self.where(nodes[0])}: defaults is not a list", hint="write `- agentrl`, `- _self_`")
        return [self._entry(node) for node in nodes[0].value]

    def _entry(self, node: yaml.Node) -> Entry:
        if isinstance(node, yaml.ScalarNode):
            return Entry(self.where(node), None, node.value, override=False, optional=False)
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        if len(pairs) != 1 or not all(isinstance(part, yaml.ScalarNode) for part in pairs[0]):
            raise UserError(
                f"{self.where(node)}: not an entry of a defaults list",
                hint="write `- name`, `- group: option` or `- override /group: option`",
            )
        *words, group = pairs[0][0].value.split()
        return Entry(self.where(node), group.lstrip("/"), pairs[0][1].value, "override" in words, "optional" in words)

    def marks(self, package: str) -> dict[str, Mark]:
        """Where each of its keys is set, under `package` (the dotted key at which the file is merged, or '').

        Raises UserError at the first unknown key, duplicate key, tag or value that YAML reads as something else.
        """
        return dict(self._walk(package, self.root, schema()))

    def _walk(self, prefix: str, mapping: yaml.MappingNode, known: Schema) -> Iterator[tuple[str, Mark]]:
        seen: set[str] = set()
        for key_node, value in mapping.value:
            if key_node.tag == _STANDARD_TAG + "merge":
                for merged in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    yield from self._walk(prefix, merged, known)
                continue
            name = str(key_node.value)
            where = self.where(key_node)
            if name in seen:
                raise UserError(f"{where}: '{name}' is set twice", hint="YAML would silently keep the last one")
            seen.add(name)
            if name == "defaults" and mapping is self.root:
                continue
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
            if not item.tag.startswith(_STANDARD_TAG):
                raise UserError(f"{self.where(item)}: {leaf.key}: the tag {item.tag} means nothing here")
            if isinstance(item, yaml.ScalarNode) and item.style is None and (problem := _trap(leaf, item)):
                raise UserError(f"{self.where(item)}: {leaf.key}: {problem[0]}", hint=problem[1])


def read_yaml(path: Path, shown: str) -> YamlFile:
    """Read a file. Raises UserError if it cannot be read, is not YAML, is empty or holds no mapping."""
    try:
        root = yaml.compose(path.read_text(encoding="utf-8-sig"), Loader=get_yaml_loader())
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
    if root is None:
        raise UserError(f"{shown}: is empty", hint="begin with `defaults: [agentrl, _self_]`")
    if not isinstance(root, yaml.MappingNode):
        raise UserError(f"{shown}: holds no settings at its top level", hint="expected lines like `key: value`")
    return YamlFile(path, shown, root)


def unknown_key(key: str, where: str, known: Schema) -> UserError:
    """The error for a key that the schema does not have."""
    if key == "hydra" or key.startswith(("hydra.", "hydra/")):
        return UserError(f"{where}: '{key}': Hydra's own settings have no effect here", hint="remove it")
    nearest = known.nearest(key)
    hint = f"did you mean '{nearest}'?" if nearest else "agentrl show --schema lists all keys"
    if "." in key and known.known(key.rpartition(".")[2]) and not nearest:
        hint = f"'{key.rpartition('.')[2]}' belongs at the top level"
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


def _is_interpolation(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and "${" in node.value


def _raw(node: yaml.Node) -> str:
    """A value as it was written, for messages."""
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"
