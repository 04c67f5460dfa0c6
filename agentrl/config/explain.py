"""Hydra's and OmegaConf's exceptions as one line that says what is wrong, where, and what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping

from omegaconf.errors import ValidationError

from agentrl.config.catalog import Catalog, did_you_mean
from agentrl.config.fields import schema
from agentrl.config.yaml_file import Mark
from agentrl.errors import UserError


def composition(error: BaseException, marks: Mapping[str, Mark]) -> UserError:
    """The error for an exception that composing raised. `marks` tell where each key was set."""
    cause = _chained(error)
    for exception in cause:
        key = getattr(exception, "full_key", None)
        if isinstance(exception, ValidationError | ValueError) and key and _base_key(key) in schema().leaves:
            return bad_value(_base_key(key), marks)
    message = _one_line(str(error))
    if match := re.search(r"An item is already at '([^']+)'", message):
        return UserError(f"'+{match[1]}' adds what exists already", hint=f"write {match[1]}=... without the +")
    if match := re.search(r"Multiple values for (\S+?)\.", message):
        return UserError(f"group '{match[1]}' is chosen twice", hint=f"write `override /{match[1]}: option`")
    return UserError(message)


def bad_value(key: str, marks: Mapping[str, Mark], *, raw: str | None = None) -> UserError:
    """The error for a value of the wrong type or out of range. `raw` is used where no mark knows the text."""
    leaf = schema().leaves[key]
    mark = marks.get(key) or Mark("configuration", raw or "the value")
    hint = None
    if leaf.type is int and re.fullmatch(r"[-+]?\d+(\.0*)?([eE]\+?\d+)?", mark.raw) and not mark.raw.isdigit():
        number = float(mark.raw)
        whole = number.is_integer() and abs(number) < 1e15
        hint = f"write {int(number)}" if whole and leaf.in_range(int(number)) else None
    if (
        leaf.type in (int, float)
        and re.fullmatch(r"\d+(:\d\d){1,2}", mark.raw)
        and leaf.in_range(_sexagesimal(mark.raw))
    ):
        hint = f"write {_sexagesimal(mark.raw)}"
    if leaf.options:
        hint = did_you_mean(mark.raw, leaf.options)
        return UserError(f"{mark.where}: {key}: {mark.raw} is not an option", hint=hint)
    return UserError(f"{mark.where}: {key}: {mark.raw or 'nothing'} is not {leaf.expects()}", hint=hint)


def unresolvable(key: str, marks: Mapping[str, Mark], error: BaseException) -> UserError:
    """The error for an interpolation that leads nowhere, round in a circle, or to a value of the wrong type."""
    mark = marks.get(key) or Mark("configuration", "${...}")
    reason = _one_line(str(error))
    if isinstance(error, RecursionError) or "ecursive interpolation" in reason:
        reason = "it leads back to itself"
    return UserError(f"{mark.where}: {key}: {mark.raw} cannot be resolved: {reason}")


def unknown_option(where: str, group: str, name: str, catalog: Catalog) -> UserError:
    """The error for a group option that does not exist."""
    hint = did_you_mean(name, catalog.options(group))
    return UserError(f"{where}: group '{group}' has no option '{name}'", hint=hint)


def _chained(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in found:
        found.append(current)
        current = current.__cause__ or current.__context__
    return found


def _sexagesimal(text: str) -> int:
    """`01:30` as 90, `01:30:00` as 5400: minutes and seconds, with hours before them."""
    total = 0
    for part in text.split(":"):
        total = 60 * total + int(part)
    return total


def _base_key(full_key: str) -> str:
    """`agent.examples[0]` is a value of `agent.examples`."""
    return re.sub(r"\[.*$", "", full_key)


def _one_line(message: str) -> str:
    """Hydra's message without its links and OmegaConf's key and type lines."""
    dropped = ("full_key:", "object_type=", "reference_type=", "See https:", "Set the environment variable HYDRA")
    lines = [line.strip() for line in message.splitlines()]
    return "; ".join(line for line in lines if line and not line.startswith(dropped))
