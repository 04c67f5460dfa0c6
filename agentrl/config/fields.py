"""The schema as data: every section and every setting of `JobConfig`, by its dotted key.

Composition, lint, completion and `show --schema` ask here what exists, what it may hold and what a mistyped key might
have meant. Needs neither Hydra nor OmegaConf.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import re
import types
import typing
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any

from msgspec import Meta

from agentrl.config.schema import JobConfig

REPLACED = {"schedule.balance": "schedule.swing=all was in_turn, schedule.swing=none was overlap"}
"""Keys of earlier versions, and what to write now."""
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", dict: "a mapping"}


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """One setting."""

    key: str
    """Dotted key, as in an override."""
    type: type
    """int, float, bool, str, dict or an Enum; of the items if `many`."""
    many: bool
    """Whether the value is a list."""
    optional: bool
    """Whether null is a value."""
    meta: Meta | None
    """Range of the value, or of the text."""
    default: Any
    """The schema's own default, before any YAML."""

    @property
    def options(self) -> tuple[str, ...]:
        """Names of an enum's members; () for other types."""
        return tuple(self.type.__members__) if issubclass(self.type, Enum) else ()

    def expects(self) -> str:
        """What a value must be, to complete `X is not ...`."""
        options = "one of " + ", ".join(self.options)
        what = options if self.options else _WORDS[self.type] + range_text(self.meta)
        if self.many:
            what = f"a list, each item {what}"
        return f"{what}, or null" if self.optional else what

    def in_range(self, value: Any) -> bool:
        """Whether a value of the right type, or an item of the list, is one that the setting may hold."""
        if isinstance(value, float) and not math.isfinite(value):
            return False
        meta = self.meta
        if meta is None:
            return True
        if isinstance(value, str):
            long_enough = len(value) >= (meta.min_length or 0)
            return long_enough and (meta.pattern is None or re.search(meta.pattern, value) is not None)
        bounds = (
            meta.gt is None or value > meta.gt,
            meta.ge is None or value >= meta.ge,
            meta.lt is None or value < meta.lt,
            meta.le is None or value <= meta.le,
        )
        return all(bounds)


@dataclass(frozen=True)
class Schema:
    """All sections and leaves. The root is the section ''."""

    sections: dict[str, type]
    leaves: dict[str, Leaf]

    def known(self, key: str) -> bool:
        return key in self.sections or key in self.leaves

    def children(self, section: str) -> list[str]:
        """Dotted keys right below a section."""
        prefix = f"{section}." if section else ""
        return [f"{prefix}{field.name}" for field in dataclasses.fields(self.sections[section])]

    def nearest(self, key: str) -> str | None:
        """The key that a mistyped one most likely meant: a sibling first, then the same name elsewhere.

        Below a section that exists, a name that is only like one elsewhere is no guess worth making.
        """
        section, _, name = key.rpartition(".")
        if section in self.sections:
            siblings = {child.rpartition(".")[2]: child for child in self.children(section)}
            if close := difflib.get_close_matches(name, siblings, n=1, cutoff=0.6):
                return siblings[close[0]]
            if section:
                return next((leaf for leaf in self.leaves if leaf.rpartition(".")[2] == name), None)
        names: dict[str, str] = {}
        for leaf in self.leaves:
            names.setdefault(leaf.rpartition(".")[2], leaf)
        if close := difflib.get_close_matches(name, names, n=1, cutoff=0.8):
            return names[close[0]]
        close = difflib.get_close_matches(key, [*self.leaves, *self.sections], n=1, cutoff=0.7)
        return close[0] if close else None


def range_text(meta: Meta | None) -> str:
    """A range in words, with a leading space: ' >= 1', ' > 0 and <= 1', ''."""
    if meta is None:
        return ""
    if meta.description:
        return f" of {meta.description}"
    if meta.min_length:
        return " that is not empty"
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    parts = [f"{sign} {getattr(meta, name)}" for name, sign in signs.items() if getattr(meta, name) is not None]
    return " " + " and ".join(parts) if parts else ""


@functools.cache
def schema() -> Schema:
    """The schema of `JobConfig`."""
    sections: dict[str, type] = {}
    leaves: dict[str, Leaf] = {}
    _collect("", JobConfig, sections, leaves)
    return Schema(sections, leaves)


def _collect(key: str, kind: type, sections: dict[str, type], leaves: dict[str, Leaf]) -> None:
    sections[key] = kind
    hints = typing.get_type_hints(kind, include_extras=True)
    defaults = kind()
    for field in dataclasses.fields(kind):
        child = f"{key}.{field.name}" if key else field.name
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            _collect(child, typing.cast(type, hint), sections, leaves)
        else:
            leaves[child] = _leaf(child, hint, getattr(defaults, field.name))


def _leaf(key: str, hint: Any, default: Any) -> Leaf:
    optional, many, meta = False, False, None
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        (hint,) = (arg for arg in typing.get_args(hint) if arg is not types.NoneType)
        optional = True
    if typing.get_origin(hint) is list:
        (hint,) = typing.get_args(hint)
        many = True
    if typing.get_origin(hint) is Annotated:
        hint, meta = typing.get_args(hint)
    hint = dict if typing.get_origin(hint) is dict else hint  # what its keys are, only its docstring says
    return Leaf(key=key, type=hint, many=many, optional=optional, meta=meta, default=default)
