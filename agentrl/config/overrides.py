"""Overrides on the command line: Hydra's grammar, with the mistakes that Hydra lets pass."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from agentrl.config.catalog import Catalog
from agentrl.config.explain import unknown_option
from agentrl.config.fields import Leaf, schema
from agentrl.config.yaml_file import Mark, unknown_key
from agentrl.errors import UserError

_GRAMMAR = "write key=value or group=option; quote a value that holds spaces, commas, = or brackets: 'key=\"a, b\"'"

_LEADING_ZERO = re.compile(r"([-+]?)0[0_]*(\d[\d_]*)")


@dataclass(frozen=True)
class Override:
    """One parsed override."""

    text: str
    key: str
    """Dotted key or group, without `+`, `~`, `@package`."""
    value: Any

    @property
    def where(self) -> str:
        return f"override '{self.text}'"

    @property
    def removes(self) -> bool:
        return self.text.startswith("~")

    @property
    def option(self) -> str | None:
        """`model/tiny` if it chooses an option of a group, None if it sets a value."""
        is_choice = isinstance(self.value, str) and "." not in self.key and self.key not in schema().leaves
        return f"{self.key}/{self.value}" if is_choice and not self.removes else None

    def marks(self) -> dict[str, Mark]:
        """The keys that it sets, with the text of each value."""
        return {key: Mark(self.where, _text(value)) for key, value in _walk(self.key, self.value)}


def parse(overrides: Sequence[str]) -> list[Override]:
    """Parse with Hydra's own parser. Raises UserError on bad grammar, sweeps and Hydra's own settings."""
    parser = OverridesParser.create()
    parsed = []
    for text in overrides:
        try:
            override = parser.parse_override(text)
        except RecursionError as error:
            raise UserError(f"override '{text[:40]}...' is nested too deeply") from error
        except HydraException as error:
            raise UserError(f"override '{text}' is not understood", hint=_GRAMMAR) from error
        if override.is_hydra_override():
            raise unknown_key("hydra", f"override '{text}'", schema())
        if override.is_sweep_override():
            raise UserError(f"override '{text}' has several values", hint="one run takes one; a list is key=[a,b]")
        parsed.append(Override(text, override.key_or_group.lstrip("/"), override.value()))
    return parsed


def check(overrides: Sequence[Override], catalog: Catalog) -> None:
    """Every key and group option exists, and no value is read as another than was written. Raises UserError."""
    known = schema()
    for override in overrides:
        if catalog.is_group(override.key) and not isinstance(override.value, dict):
            _check_option(override, catalog)
            continue
        if override.removes and known.known(override.key):
            raise UserError(f"{override.where}: every setting needs a value", hint=f"write {override.key}=... instead")
        for key, value in _walk(override.key, override.value):
            base = key if known.known(key) else _without_index(key)
            if not known.known(base):
                raise unknown_key(key, override.where, known)
            if leaf := known.leaves.get(base):
                for item in value if isinstance(value, list) else [value]:
                    _check_unchanged(override, leaf, item)


def _check_unchanged(override: Override, leaf: Leaf, value: Any) -> None:
    """Text is not read as a number, nor `010` as 10: what Hydra and OmegaConf do in silence is an error here."""
    written = override.text.partition("=")[2].strip()
    if leaf.type is str and isinstance(value, bool | int | float) and not _holds(written, str(value)):
        alone = override.key == leaf.key and not leaf.many
        raise UserError(
            f"{override.where}: {leaf.key}: {written} would become the text {value}",
            hint=f"write '{override.key}=\"{written}\"'" if alone else 'put double quotes around the "text" in it',
        )
    if leaf.type in (int, float) and isinstance(value, str) and (match := _LEADING_ZERO.fullmatch(value.strip())):
        plain = f"{match[1]}{match[2]}"
        raise UserError(
            f"{override.where}: {leaf.key}: {value.strip()} has a leading zero",
            hint=f"write {plain}" if leaf.in_range(int(plain)) else None,
        )


def _holds(written: str, word: str) -> bool:
    """Whether a value was written as `word`, alone or in a list or mapping."""
    return re.search(rf"(?<![\w.+-]){re.escape(word)}(?![\w.])", written) is not None


def _check_option(override: Override, catalog: Catalog) -> None:
    if override.value is None or (override.removes and override.value == ""):
        return
    name = str(override.value)
    if catalog.find(f"{override.key}/{name}") is None:
        raise unknown_option(override.where, override.key, name, catalog)


def _walk(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and key not in schema().leaves:
        if not value:
            yield key, value
        for name, item in value.items():
            yield from _walk(f"{key}.{name}", item)
    else:
        yield key, value


def _without_index(key: str) -> str:
    """`agent.examples.0` is a value of `agent.examples`."""
    base, _, index = key.rpartition(".")
    return base if index.isdigit() else key.split("[", 1)[0]


def _text(value: Any) -> str:
    """A parsed value as a person would write it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ",".join(_text(item) for item in value) + "]"
    return str(value) or "''"
