"""Server-side apply: who set which field, what a manager no longer says goes, what others own is a conflict."""

from __future__ import annotations

import json
from typing import Any

from . import errors
from .errors import Object, copied
from .patch import merge_key
from .resources import Target
from .store import now_text

Path = tuple[str, ...]
IGNORED = {("apiVersion",), ("kind",), ("metadata", "name"), ("metadata", "namespace"), ("metadata", "managedFields")}


def merge(target: Target, before: Object | None, said: Object, manager: str, *, force: bool) -> Object:
    """The object after an apply, its managed fields written down.

    Raises:
        ApiError: 409, another manager that applied before has set a field to something else.
    """
    resource, sub = target.resource, target.subresource
    said = copied(said)
    said.get("metadata", {}).pop("managedFields", None)
    mine = _leaves(said)
    live: Object = copied(before) if before is not None else {}
    managers = {
        entry["manager"]: entry
        for entry in (live.get("metadata") or {}).get("managedFields") or []
        if entry.get("subresource", "") == sub
    }
    values = _values(live)
    wanted = _values(said)
    clashes = [
        (other, path)
        for other, entry in sorted(managers.items())
        if other != manager
        for path in sorted(_paths(entry["fieldsV1"]) & mine)
        if values.get(path) != wanted.get(path)
    ]
    if clashes and not force:
        causes = [
            {"reason": "FieldManagerConflict", "message": f'conflict with "{other}"', "field": _shown(path)}
            for other, path in clashes
        ]
        who = ", ".join(sorted({f'"{other}"' for other, _ in clashes}))
        fields = ", ".join(_shown(path) for _, path in clashes)
        said_fields = f"{len(clashes)} conflict{'s' if len(clashes) > 1 else ''} with {who}: {fields}"
        raise errors.ApiError(409, "Conflict", f"Apply failed with {said_fields}", details={"causes": causes})
    taken = {path for _, path in clashes}
    result: Object = _merged(live, said)
    old = _paths(managers[manager]["fieldsV1"]) if manager in managers else set()
    others = {path for other, entry in managers.items() if other != manager for path in _paths(entry["fieldsV1"])}
    for path in sorted(old - mine - others, key=len, reverse=True):
        _remove(result, list(path))
    entries = [
        entry
        for entry in (live.get("metadata") or {}).get("managedFields") or []
        if entry.get("subresource", "") != sub
    ]
    for other, entry in managers.items():
        if other != manager and (kept := _paths(entry["fieldsV1"]) - taken):
            entries.append({**entry, "fieldsV1": _tree(kept)})
    mine_now: Object = {
        "manager": manager, "operation": "Apply", "apiVersion": resource.api_version, "time": now_text(),
        "fieldsType": "FieldsV1", "fieldsV1": _tree(mine),
    }  # fmt: skip
    if sub:
        mine_now["subresource"] = sub
    had = managers.get(manager)
    if had is not None and had["fieldsV1"] == mine_now["fieldsV1"]:
        mine_now["time"] = had["time"]
    result.setdefault("metadata", {})["managedFields"] = [*entries, mine_now]
    return result


def _element(key: str, element: Object) -> str:
    return "k:" + json.dumps({key: element.get(key)})


def _leaves(thing: Any) -> set[Path]:
    return {path for path in _values(thing) if path not in IGNORED}


def _values(thing: Any, at: Path = (), field: str = "") -> dict[Path, Any]:
    """Path -> value of everything that has no parts."""
    if isinstance(thing, dict) and thing:
        found: dict[Path, Any] = {}
        for key, value in thing.items():
            found |= _values(value, (*at, key), key)
        return found
    if isinstance(thing, list) and thing and isinstance(thing[0], dict) and (by := merge_key(field, thing)):
        found = {}
        for element in thing:
            found |= _values(element, (*at, _element(by, element)), "")
        return found
    return {at: thing} if at else {}


def _merged(live: Any, said: Any, field: str = "") -> Any:
    if isinstance(said, dict):
        base = dict(live) if isinstance(live, dict) else {}
        for key, value in said.items():
            base[key] = _merged(base.get(key), value, key)
        return base
    if isinstance(said, list) and said and isinstance(said[0], dict) and (by := merge_key(field, said)):
        result = list(live or [])
        for element in said:
            index = next((i for i, one in enumerate(result) if one.get(by) == element.get(by)), None)
            if index is None:
                result.append(element)
            else:
                result[index] = _merged(result[index], element)
        return result
    return said


def _remove(thing: Any, path: list[str]) -> None:
    """Take a leaf out, and what is empty then."""
    head, rest = path[0], path[1:]
    if isinstance(thing, list):
        index = next((i for i, one in enumerate(thing) if any(_element(key, one) == head for key in one)), None)
        if index is None:
            return
        if rest:
            _remove(thing[index], rest)
        if not rest or set(thing[index]) <= {_key_in(head)}:
            del thing[index]
    elif isinstance(thing, dict) and head in thing:
        if rest:
            _remove(thing[head], rest)
        if not rest or thing[head] in ({}, []):
            del thing[head]


def _key_in(element: str) -> str:
    return str(next(iter(json.loads(element[2:]))))


def _tree(paths: set[Path]) -> Object:
    tree: Object = {}
    for path in sorted(paths):
        at = tree
        for part in path:
            at = at.setdefault(part if part.startswith("k:") else f"f:{part}", {})
    return tree


def _paths(tree: Object, at: Path = ()) -> set[Path]:
    if not tree:
        return {at} if at else set()
    return {
        path for key, below in tree.items() for path in _paths(below, (*at, key[2:] if key.startswith("f:") else key))
    }


def _shown(path: Path) -> str:
    shown = ""
    for part in path:
        shown += f"[{part[3:-1].replace(': ', '=')}]" if part.startswith("k:") else f".{part}"
    return shown
