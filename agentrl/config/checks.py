"""What must hold around composition: the file is usable, its defaults list makes sense, every value fits."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.config.catalog import BASE, SCHEMA, absolute, shown
from agentrl.config.explain import bad_value
from agentrl.config.fields import Leaf, schema
from agentrl.config.tree import Tree
from agentrl.config.user_files import BASE_HINT
from agentrl.config.yaml_file import Mark, YamlFile, unknown_key
from agentrl.errors import UserError


def usable_file(file: Path) -> Path:
    """The file's absolute path. Raises UserError if there is none, it is no regular file, or not named *.yaml."""
    path = absolute(file)
    if path.is_dir():
        raise UserError(f"{file}: is a folder", hint=_yaml_files_hint(path, "give one of its files"))
    if not path.exists():
        raise UserError(f"{file}: no such file", hint=_similar_file_hint(path))
    if not path.is_file():  # reading a FIFO or a device would never end
        raise UserError(f"{file}: is not a regular file", hint="give a YAML file")
    if path.suffix != ".yaml":
        raise UserError(f"{file}: must be named *.yaml", hint=f"rename it to {path.stem}.yaml")
    if path.stem in (BASE, SCHEMA):
        raise UserError(f"{file}: the name {path.stem} belongs to the packaged base", hint="rename your file")
    return path


def check_names_itself(primary: YamlFile) -> None:
    """The file's defaults list says where its own values stand. Raises UserError."""
    if not primary.names_itself():
        raise UserError(
            f"{primary.shown}: its defaults list lacks _self_", hint="end it with `- _self_`, so that your values win"
        )


def check_order(primary: YamlFile, sources: Sequence[tuple[str, Path | None]]) -> None:
    """The base is part of the composition, and is merged before every file of the user. Raises UserError.

    `sources` are (name, file) in merge order; a base merged after a file would silently win over it.
    """
    names = [name for name, _ in sources]
    if SCHEMA not in names:
        raise UserError(f"{primary.shown}: its defaults list lacks the base", hint=BASE_HINT)
    files = [file for _, file in sources]
    own = files.index(primary.path)
    if names.index(BASE) > own and primary.has_keys():
        raise UserError(
            f"{primary.shown}: _self_ comes before `{BASE}`, which would win over your values",
            hint="make `- _self_` the last entry of defaults",
        )


def check_tree(tree: Tree, marks: Mapping[str, Mark]) -> None:
    """Every key exists, none was removed, every value is there and in range. Raises UserError."""
    known = schema()
    flat = dict(_flatten("", tree))
    for key in flat:
        if key not in known.leaves:
            raise unknown_key(key, _where(key, marks), known)
    for key, leaf in known.leaves.items():
        if key not in flat:
            raise UserError(f"{key} was removed, but every setting needs a value", hint="set it instead of using ~")
        _check_value(leaf, flat[key], marks)


def _flatten(prefix: str, tree: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for name, value in tree.items():
        key = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(value, Mapping) and key not in schema().leaves and value:
            yield from _flatten(key, value)
        else:
            yield key, value


def _check_value(leaf: Leaf, value: Any, marks: Mapping[str, Mark]) -> None:
    # Merged onto the schema, ??? changes nothing: only the text that was written last tells.
    if value == "???" or (leaf.key in marks and marks[leaf.key].raw == "???"):
        raise UserError(f"{leaf.key} is missing: it needs a value", hint=f"set it in your file, or add {leaf.key}=...")
    if leaf.optional and value == "None":
        raise UserError(
            f"{_where(leaf.key, marks)}: {leaf.key}: None is the text 'None'", hint="write null for no value"
        )
    items = value if leaf.many else [value]
    for item in items:
        if item == "???":
            raise UserError(f"{leaf.key}: an item is missing")
        if item is not None and not leaf.in_range(item):
            raise bad_value(leaf.key, marks, raw=str(value))


def _where(key: str, marks: Mapping[str, Mark]) -> str:
    return marks[key].where if key in marks else "configuration"


def _yaml_files_hint(folder: Path, action: str) -> str | None:
    names = sorted(path.name for path in folder.glob("*.yaml"))[:5]
    return f"{action}: {', '.join(names)}" if names else None


def _similar_file_hint(path: Path) -> str | None:
    if not path.parent.is_dir():
        return None
    names = [candidate.name for candidate in path.parent.glob("*.yaml")]
    close = difflib.get_close_matches(path.stem + ".yaml", names, n=1, cutoff=0.6)
    return f"did you mean {shown(path.parent / close[0])}?" if close else None
