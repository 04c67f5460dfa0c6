"""All YAML files of the user that a job is made of, found and checked before Hydra reads them.

Hydra meets a broken or missing file in the middle of its work and reports it in its own words, or not at all; the
defaults lists are followed here first, so that each mistake has a file and a line.
"""

from __future__ import annotations

from pathlib import Path

from agentrl.config.catalog import BASE, PACKAGED, SCHEMA, Catalog, did_you_mean, shown
from agentrl.config.explain import unknown_option
from agentrl.config.fields import schema
from agentrl.config.yaml_file import Entry, YamlFile, read_yaml, unknown_key
from agentrl.errors import UserError

BASE_HINT = f"the first entry must be `- {BASE}`, the packaged base"
_KEYWORDS = ("_self_", "null", "???")

UserFiles = dict[Path, YamlFile]


def collect(primary: YamlFile, catalog: Catalog, chosen: list[str]) -> UserFiles:
    """The user's files that `primary` and the options in `chosen` (`model/mine`) lead to, by path.

    Raises UserError on a name that no file has, a file that is broken, and files that include each other.
    """
    base = catalog.find(BASE)
    if base is None or not base.is_relative_to(PACKAGED):
        raise UserError(f"{base and shown(base)}: hides the packaged base `{BASE}`", hint="rename your file")
    files: UserFiles = {}
    _follow(primary, "", catalog, files, [])
    for name in chosen:
        _follow_name(name, catalog, files, [])
    return files


def _follow(file: YamlFile, group: str, catalog: Catalog, files: UserFiles, trail: list[Path]) -> None:
    files[file.path] = file
    entries = file.defaults() if not group else file.optional_defaults()
    for entry in entries:
        if (name := _target(entry, group, catalog)) is not None:
            _follow_name(name, catalog, files, [*trail, file.path])


def _follow_name(name: str, catalog: Catalog, files: UserFiles, trail: list[Path]) -> None:
    path = catalog.find(name)
    if path is None or path.is_relative_to(PACKAGED):
        return
    if path in trail:
        raise UserError(f"{shown(path)}: includes itself, through {shown(trail[-1])}", hint="break the circle")
    if path not in files:
        _follow(read_yaml(path, shown(path)), name.rpartition("/")[0], catalog, files, trail)


def _target(entry: Entry, group: str, catalog: Catalog) -> str | None:
    """The config that an entry of a file in `group` names, or None for one that only Hydra can tell."""
    name = entry.name.partition("@")[0]
    if "${" in name or name in _KEYWORDS:
        return None
    inside = f"{group}/" if group and not entry.absolute else ""
    if entry.group is None:
        target = f"{inside}{name}"
        if target != SCHEMA and catalog.find(target) is None and not entry.optional:
            raise UserError(f"{entry.where}: no config named '{target}'", hint=None if group else BASE_HINT)
        return target
    option_group = inside + entry.group.partition("@")[0]
    if option_group.split("/")[0] == "hydra":
        raise unknown_key("hydra", entry.where, schema())
    if entry.optional:
        return f"{option_group}/{name}"
    if not catalog.is_group(option_group):
        raise UserError(f"{entry.where}: no group '{option_group}'", hint=did_you_mean(option_group, catalog.groups()))
    if catalog.find(f"{option_group}/{name}") is None:
        raise unknown_option(entry.where, option_group, name, catalog)
    return f"{option_group}/{name}"
