"""The kinds of patch: JSON (RFC 6902), merge (RFC 7386), and the strategic merge that knows lists by their keys."""

from __future__ import annotations

from typing import Any

from .errors import ApiError, Object, bad_request, copied

MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "secrets": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "hostAliases": "ip",
    "ownerReferences": "uid",
    "conditions": "type",
    "topologySpreadConstraints": "topologyKey",
    "podIPs": "ip",
    "resourceClaims": "name",
    "schedulingGates": "name",
}
"""List -> the field that tells its elements apart. Ports are told by ``_port_key``; other lists are replaced whole."""

SETS = frozenset({"finalizers"})
"""Lists of words that are merged as sets."""


def merge_key(field: str, elements: list[Any]) -> str | None:
    """What tells the elements of a list apart; None for a list that is one value."""
    if field == "ports":
        with_container = any("containerPort" in element for element in elements if isinstance(element, dict))
        return "containerPort" if with_container else "port"
    return MERGE_KEYS.get(field)


JSON_PATCH, MERGE_PATCH = "application/json-patch+json", "application/merge-patch+json"
STRATEGIC_PATCH, APPLY_PATCH = "application/strategic-merge-patch+json", "application/apply-patch+yaml"


def patched(before: Object, body: Any, kind: str, *, strategic: bool) -> Object:
    """Apply a patch of a content type.

    Args:
        strategic: whether the resource knows its lists; custom ones do not.

    Raises:
        ApiError: 400, 415 or 422.
    """
    if kind == JSON_PATCH:
        try:
            return json_patch(before, body)
        except LookupError as error:
            said = f"the server rejected our request due to an error in our request: {error}"
            raise ApiError(422, "Invalid", said) from error
    result: Object
    if kind == MERGE_PATCH:
        result = merge_patch(before, body)
    elif kind == STRATEGIC_PATCH and strategic:
        result = strategic_patch(before, body)
    else:
        known = ", ".join((JSON_PATCH, MERGE_PATCH, *((STRATEGIC_PATCH,) if strategic else ()), APPLY_PATCH))
        said = f"the body of the request was in an unknown format - accepted media types include: {known}"
        raise ApiError(415, "UnsupportedMediaType", said)
    return result


def json_patch(thing: Object, operations: Any) -> Object:
    """Apply a JSON patch.

    Raises:
        ApiError: 400, it is no patch; 422 is raised by the caller where an operation does not fit.
        LookupError: an operation names what is not there, or its test fails.
    """
    if not isinstance(operations, list):
        raise bad_request("error decoding patch: json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    result: Any = copied(thing)
    for operation in operations:
        result = _operate(result, operation)
    done: Object = result
    return done


def _operate(result: Any, operation: Object) -> Any:
    kind, path = operation["op"], operation["path"]
    if kind in ("move", "copy"):
        value = copied(_at(result, _parts(operation["from"])))
        if kind == "move":
            result = _operate(result, {"op": "remove", "path": operation["from"]})
        return _operate(result, {"op": "add", "path": path, "value": value})
    parts = _parts(path)
    if kind == "test":
        if _at(result, parts) != operation.get("value"):
            raise LookupError(f"testing value {path} failed: test failed")
        return result
    if not parts:
        return operation["value"]
    parent, last = _at(result, parts[:-1]), parts[-1]
    where: Any = last
    if isinstance(parent, list):
        where = len(parent) if last == "-" else int(last)
        is_there = where < len(parent)
    else:
        is_there = last in parent
    if not is_there and (kind != "add" or (isinstance(parent, list) and where > len(parent))):
        raise LookupError(f"{kind} operation does not apply: doc is missing path: {path}: missing value")
    if kind == "remove":
        del parent[where]
    elif kind == "add" and isinstance(parent, list):
        parent.insert(where, operation["value"])
    else:
        parent[where] = operation["value"]
    return result


def _parts(path: str) -> list[str]:
    return [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]


def _at(thing: Any, parts: list[str]) -> Any:
    for part in parts:
        try:
            thing = thing[int(part)] if isinstance(thing, list) else thing[part]
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise LookupError(f"doc is missing path: /{'/'.join(parts)}: missing value") from error
    return thing


def merge_patch(thing: Any, patch: Any) -> Any:
    """Apply a merge patch: null removes, objects merge, anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(thing) if isinstance(thing, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def strategic_patch(thing: Any, patch: Any) -> Any:
    """Apply a strategic merge patch."""
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    result = dict(thing) if isinstance(thing, dict) else {}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            field = key.split("/", 1)[1]
            result[field] = [one for one in result.get(field) or [] if one not in value]
        elif key.startswith("$"):
            continue
        elif value is None:
            result.pop(key, None)
        elif isinstance(value, list):
            result[key] = _merge_lists(key, result.get(key) or [], value)
        elif isinstance(value, dict) and value.get("$patch") == "delete":
            result.pop(key, None)
        else:
            result[key] = strategic_patch(result.get(key), value)
    return result


def _merge_lists(field: str, have: list[Any], patch: list[Any]) -> list[Any]:
    if field in SETS:
        return have + [one for one in patch if one not in have]
    key = merge_key(field, have + patch)
    if key is None:
        return patch
    result = list(have)
    for element in patch:
        if element.get("$patch") == "replace":
            return [one for one in patch if "$patch" not in one]
        index = next((i for i, one in enumerate(result) if one.get(key) == element.get(key)), None)
        if element.get("$patch") == "delete":
            if index is not None:
                del result[index]
        elif index is None:
            result.append(strategic_patch({}, element))
        else:
            result[index] = strategic_patch(result[index], element)
    return result
