"""A user's changes to an object that agentrl made: as kubectl patches, lists of named things merged by name."""

from __future__ import annotations

import copy
from typing import Any

Object = dict[str, Any]

_KEYS = ("name", "mountPath", "containerPort", "key", "topologyKey", "ip")
"""What tells the items of a list apart: the first of these that every item has."""


def merged(base: Object, patch: Object) -> Object:
    """`base` with `patch` on it: maps key by key, lists of keyed items by their key, everything else replaced.

    null in `patch` removes a key. Neither argument is changed.
    """
    result = copy.deepcopy(base)
    for name, value in patch.items():
        old = result.get(name)
        if value is None:
            result.pop(name, None)
        elif isinstance(old, dict) and isinstance(value, dict):
            result[name] = merged(old, value)
        elif isinstance(old, list) and isinstance(value, list) and (key := _key(old, value)):
            result[name] = _merged_lists(old, value, key)
        else:
            result[name] = copy.deepcopy(value)
    return result


def _key(old: list[Any], new: list[Any]) -> str | None:
    items = [*old, *new]
    if not all(isinstance(item, dict) for item in items):
        return None
    return next((key for key in _KEYS if all(key in item for item in items)), None)


def _merged_lists(old: list[Object], new: list[Object], key: str) -> list[Object]:
    changes = {item[key]: item for item in new}
    kept = [merged(item, changes.pop(item[key])) if item[key] in changes else copy.deepcopy(item) for item in old]
    return kept + [copy.deepcopy(item) for item in changes.values()]
