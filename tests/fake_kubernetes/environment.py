"""A container's variables, and the ``$(NAME)`` in its command and arguments. Pure functions over objects."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Any

from .errors import Object
from .validation import quantity

Lookup = Callable[[str, str], Object | None]
"""(ConfigMap or Secret, name) -> the object in the pod's namespace."""


class NotConfigured(Exception):
    """A container cannot be made: something that it names is not there. The text is the kubelet's."""


def variables(pod: Object, container: Object, lookup: Lookup, base: dict[str, str]) -> dict[str, str]:
    """The variables of a container.

    Args:
        base: those that every container has, which the pod's own replace.

    Raises:
        NotConfigured: a ConfigMap, Secret or key is missing and not optional.
    """
    made = dict(base)
    for source in container.get("envFrom") or []:
        for kind, ref in (("ConfigMap", source.get("configMapRef")), ("Secret", source.get("secretRef"))):
            if ref is not None:
                data = _data(kind, ref, lookup)
                made |= {source.get("prefix", "") + key: value for key, value in data.items()}
    for variable in container.get("env") or []:
        name, source = variable["name"], variable.get("valueFrom")
        if source is None:
            made[name] = expand(variable.get("value") or "", made)
            continue
        value = _value(pod, container, source, lookup)
        if value is not None:
            made[name] = value
    return made


def expand(text: str, values: dict[str, str]) -> str:
    """Replace ``$(NAME)`` by its value; ``$$(NAME)`` stands for itself, and so does an unknown name."""

    def replaced(found: re.Match[str]) -> str:
        if found[0].startswith("$$"):
            return found[0][1:]
        return values.get(found[1], found[0])

    return re.sub(r"\$?\$\(([A-Za-z_.][\w.-]*)\)", replaced, text)


def decoded(kind: str, thing: Object) -> dict[str, bytes]:
    """The files or values of a ConfigMap or Secret."""
    if kind == "Secret":
        return {key: base64.b64decode(value) for key, value in (thing.get("data") or {}).items()}
    plain = {key: value.encode() for key, value in (thing.get("data") or {}).items()}
    return plain | {key: base64.b64decode(value) for key, value in (thing.get("binaryData") or {}).items()}


def field_of(pod: Object, path: str) -> str:
    """What the downward API gives for a field."""
    if found := re.fullmatch(r"metadata\.(labels|annotations)\['(.*)'\]", path):
        return str((pod["metadata"].get(found[1]) or {}).get(found[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        values = pod["metadata"].get(path.split(".")[1]) or {}
        return "\n".join(f'{key}="{value}"' for key, value in sorted(values.items()))
    at: Any = pod
    for part in path.split("."):
        at = at.get(part) if isinstance(at, dict) else None
    if path in ("status.podIPs", "status.hostIPs"):
        return ",".join(one["ip"] for one in at or [])
    return "" if at is None else str(at)


def _value(pod: Object, container: Object, source: Object, lookup: Lookup) -> str | None:
    if field := source.get("fieldRef"):
        return field_of(pod, field["fieldPath"])
    if resource := source.get("resourceFieldRef"):
        return _amount(container, resource)
    for kind, ref in (("ConfigMap", source.get("configMapKeyRef")), ("Secret", source.get("secretKeyRef"))):
        if ref is None:
            continue
        data = _data(kind, ref, lookup)
        if ref["key"] in data:
            return data[ref["key"]]
        if not ref.get("optional"):
            raise NotConfigured(
                f"couldn't find key {ref['key']} in {kind} {pod['metadata']['namespace']}/{ref['name']}"
            )
    return None


def _data(kind: str, ref: Object, lookup: Lookup) -> dict[str, str]:
    thing = lookup(kind, ref["name"])
    if thing is None:
        if ref.get("optional"):
            return {}
        raise NotConfigured(f'{kind.lower()} "{ref["name"]}" not found')
    return {key: value.decode() for key, value in decoded(kind, thing).items()}


def _amount(container: Object, ref: Object) -> str:
    kind, _, what = ref["resource"].partition(".")
    amount = quantity(((container.get("resources") or {}).get(kind) or {}).get(what, 0))
    divisor = quantity(ref.get("divisor") or 1) or 1.0
    return str(int(-(-amount // divisor)))
