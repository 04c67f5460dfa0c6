"""Which fields objects have: the official client's models, and `custom` for custom resources.

A schema is a word for a plain value (``str``, ``int``, ``bool``, ``float``, ``any``, ``time``), or a `ListOf`, `MapOf`
`OneOf` or `Struct`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from kubernetes import client

from .errors import Cause

Schema = Any


@dataclass(frozen=True)
class ListOf:
    item: Schema


@dataclass(frozen=True)
class MapOf:
    item: Schema


@dataclass(frozen=True)
class Struct:
    """An object with known fields. ``required`` must be there."""

    name: str
    fields: dict[str, Schema]
    required: frozenset[str] = frozenset()


PLAIN = {
    "str": "str",
    "int": "int",
    "bool": "bool",
    "float": "float",
    "object": "any",
    "datetime": "time",
    "bytes": "str",
}
GO_NAMES = {"str": "string", "int": "int64", "bool": "bool", "float": "float64", "time": "string"}


@cache
def of_model(name: str) -> Struct:
    """The schema of a class of the official client, by its JSON names."""
    model = getattr(client, name)
    fields: dict[str, Schema] = {}
    for attribute, json_name in model.attribute_map.items():
        fields[json_name] = of_type(model.openapi_types[attribute])
    required = frozenset(
        model.attribute_map[attribute] for attribute, info in model.model_fields.items() if info.is_required()
    )
    return Struct(re.sub(r"^(Core)?V\d+((alpha|beta)\d+)?", "", name), fields, required)


def of_type(text: str) -> Schema:
    """The schema that a type's name stands for. Models are looked up when they are needed: some hold themselves."""
    if found := re.fullmatch(r"List\[(.*)\]", text):
        return ListOf(of_type(found[1]))
    if found := re.fullmatch(r"Dict\[str, (.*)\]", text):
        return MapOf(of_type(found[1]))
    return PLAIN.get(text, Model(text))


@dataclass(frozen=True)
class Model:
    """A model of the client that is looked up when something is checked against it."""

    name: str


class OneOf:
    """Text out of a few."""

    def __init__(self, *values: str) -> None:
        self.values = values


@dataclass
class Findings:
    """What does not fit, by kind: each kind is another answer of the API."""

    unknown: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    invalid: list[Cause] = field(default_factory=list)


def check(value: Any, schema: Schema, path: str = "", inside: str = "", found: Findings | None = None) -> Findings:
    """Compare a value with a schema."""
    found = Findings() if found is None else found
    if value is None or schema == "any":
        return found
    if isinstance(schema, Model):
        schema = of_model(schema.name)
    if not _has_shape(value, schema, path):
        found.wrong.append(_mismatch(value, inside, path, _go_name(schema)))
    elif isinstance(schema, OneOf):
        if value not in schema.values:
            known = ", ".join(f'"{one}"' for one in schema.values)
            said = f'Unsupported value: "{value}": supported values: {known}'
            found.invalid.append(Cause("FieldValueNotSupported", said, path))
    elif isinstance(schema, Struct):
        _check_fields(value, schema, path, found)
    elif isinstance(schema, ListOf):
        for index, item in enumerate(value):
            check(item, schema.item, f"{path}[{index}]", inside, found)
    elif isinstance(schema, MapOf):
        for key, item in value.items():
            check(item, schema.item, f"{path}.{key}", inside, found)
    return found


def _check_fields(value: Any, schema: Struct, path: str, found: Findings) -> None:
    before = f"{path}." if path else ""
    for key, item in value.items():
        if key in schema.fields:
            check(item, schema.fields[key], before + key, schema.name, found)
        else:
            found.unknown.append(before + key)
    missing = [key for key in sorted(schema.required) if value.get(key) is None]
    found.invalid += [Cause("FieldValueRequired", "Required value", before + key) for key in missing]


def prune(value: Any, schema: Schema) -> Any:
    """The value without the fields that the schema does not have."""
    if isinstance(schema, Model):
        schema = of_model(schema.name)
    if isinstance(schema, Struct) and isinstance(value, dict):
        return {key: prune(item, schema.fields[key]) for key, item in value.items() if key in schema.fields}
    if isinstance(schema, ListOf) and isinstance(value, list):
        return [prune(item, schema.item) for item in value]
    if isinstance(schema, MapOf) and isinstance(value, dict):
        return {key: prune(item, schema.item) for key, item in value.items()}
    return value


def _has_shape(value: Any, schema: Schema, path: str) -> bool:
    if isinstance(schema, Struct | MapOf):
        return isinstance(value, dict)
    if isinstance(schema, ListOf):
        return isinstance(value, list)
    if isinstance(schema, OneOf):
        return isinstance(value, str)
    if schema == "bool":
        return isinstance(value, bool)
    if schema == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    if schema == "float":
        return isinstance(value, int | float) and not isinstance(value, bool)
    if _is_quantity(path):
        return isinstance(value, str | int | float) and not isinstance(value, bool)
    return isinstance(value, str)


def _is_quantity(path: str) -> bool:
    """The client's models know quantities as text; the API takes numbers as well."""
    return bool(re.search(r"\.(limits|requests|capacity|allocatable|hard|used|sizeLimit|overhead)(\.|$)", path))


def _go_name(schema: Schema) -> str:
    if isinstance(schema, Model):
        return f"v1.{of_model(schema.name).name}"
    if isinstance(schema, Struct):
        return f"v1.{schema.name}"
    if isinstance(schema, ListOf):
        return f"[]{_go_name(schema.item)}"
    if isinstance(schema, MapOf):
        return f"map[string]{_go_name(schema.item)}"
    return GO_NAMES.get(schema, "interface {}")


def _mismatch(value: Any, inside: str, path: str, wanted: str) -> str:
    kinds = {str: "string", bool: "bool", int: "number", float: "number", list: "array", dict: "object"}
    where = re.sub(r"\[\d+\]", "", path)
    return f"json: cannot unmarshal {kinds[type(value)]} into Go struct field {inside}.{where} of type {wanted}"
