"""The schema for people and machines: each setting with its range, default and the docstring below its field."""

from __future__ import annotations

import ast
import inspect
import textwrap
from enum import Enum
from itertools import pairwise
from typing import Any

from agentrl.config.fields import Leaf, schema


def describe() -> list[dict[str, Any]]:
    """One entry per setting: key, expects, default (plain), doc, and options {name: doc} for enums."""
    docs = {section: member_docs(kind) for section, kind in schema().sections.items()}
    return [
        {
            "key": leaf.key,
            "expects": leaf.expects(),
            "default": _plain(leaf.default),
            "doc": docs[leaf.key.rpartition(".")[0]].get(leaf.key.rpartition(".")[2], ""),
            "options": option_docs(leaf),
        }
        for leaf in schema().leaves.values()
    ]


def _plain(value: Any) -> Any:
    """A default as YAML writes it: enums by name, alone or in a list."""
    if isinstance(value, Enum):
        return value.name
    return [_plain(item) for item in value] if isinstance(value, list) else value


def describe_text() -> str:
    """The same as text, one paragraph per setting."""
    return "\n".join(_paragraph(entry) for entry in describe())


def member_docs(kind: type) -> dict[str, str]:
    """Docstrings below the fields of a dataclass or the members of an enum, by name, each on one line."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(node, ast.ClassDef)
    docs = {}
    for statement, following in pairwise(node.body):
        name = _assigned(statement)
        if name and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            docs[name] = " ".join(str(following.value.value).split())
    return docs


def option_docs(leaf: Leaf) -> dict[str, str]:
    """What each option of an enum means; {} for other settings."""
    docs = member_docs(leaf.type) if leaf.options else {}
    return {name: docs.get(name, "") for name in leaf.options}


def _assigned(statement: ast.stmt) -> str | None:
    target = statement.target if isinstance(statement, ast.AnnAssign) else None
    if isinstance(statement, ast.Assign):
        target = statement.targets[0] if isinstance(statement.targets[0], ast.Name) else None
    return target.id if isinstance(target, ast.Name) else None


def _paragraph(entry: dict[str, Any]) -> str:
    default = "null" if entry["default"] is None else entry["default"]
    lines = [f"{entry['key']}: {entry['expects']} (default: {default})"]
    lines += textwrap.wrap(entry["doc"], width=100, initial_indent="    ", subsequent_indent="    ")
    for name, doc in entry["options"].items():
        lines += textwrap.wrap(f"{name}: {doc}", width=100, initial_indent="    - ", subsequent_indent="      ")
    return "\n".join(lines) + "\n"
