"""Reading one table of a TOML file: typed values, errors that name file and key, and what nobody asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl.errors import TaskError


class Table:
    """A TOML table that remembers which of its keys were read."""

    def __init__(self, values: dict[str, Any], *, file: Path, name: str = "") -> None:
        self._values = values
        self._file = file
        self._name = name
        self._known: set[str] = set()
        self._tables: list[Table] = []

    def table(self, key: str) -> Table:
        """A table in it; an empty one if it is not there."""
        value = self._get(key, dict, "a table")
        table = Table(value or {}, file=self._file, name=self._path(key))
        self._tables.append(table)
        return table

    def tables(self, key: str) -> list[Table]:
        """A list of tables; empty if it is not there."""
        found = []
        for index, values in enumerate(self.items(key)):
            if not isinstance(values, dict):
                raise self.error(key, f"must be a list of tables, not of {values!r}")
            found.append(Table(values, file=self._file, name=f"{self._path(key)}[{index}]"))
        self._tables += found
        return found

    def ignore(self, *keys: str) -> None:
        """These keys are understood, and have no effect here."""
        self._known.update(keys)

    def string(self, key: str) -> str | None:
        value: str | None = self._get(key, str, "a string")
        return value

    def flag(self, key: str) -> bool | None:
        value: bool | None = self._get(key, bool, "true or false")
        return value

    def items(self, key: str) -> list[Any]:
        """A list; empty if it is not there."""
        return self._get(key, list, "a list") or []

    def number(self, key: str, *, at_least: float = 0.0, positive: bool = False) -> float | None:
        """A finite number. Raises TaskError below `at_least`, or at 0 when it must be positive."""
        value = self._get(key, (int, float), "a number")
        if value is None:
            return None
        if isinstance(value, bool) or not at_least <= value < float("inf") or (positive and value == 0):
            wanted = "a positive number" if positive else f"a number of at least {at_least:g}"
            raise self.error(key, f"must be {wanted}, not {value!r}")
        return float(value)

    def number_or_numbers(self, key: str, name: str) -> dict[str, float]:
        """A finite number, as that of `name`, or a table of such; empty if it is not there."""
        value = self._get(key, (int, float, dict), "a number or a table of numbers")
        numbers = value if isinstance(value, dict) else {} if value is None else {name: value}
        for number in numbers.values():
            if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
                raise self.error(key, f"must be a number or a table of numbers, not {number!r}")
        return {one: float(number) for one, number in numbers.items()}

    def strings(self, key: str) -> dict[str, str]:
        """A table of names and scalars, as strings."""
        found = self._get(key, dict, "a table of strings") or {}
        for name, value in found.items():
            if not isinstance(value, str | int | float):
                raise self.error(key, f"{name} must be a string, not {value!r}")
        return {name: value if isinstance(value, str) else str(value) for name, value in found.items()}

    def unknown(self) -> Iterator[str]:
        """Dotted names of the keys that were not read, here and in the tables below."""
        for key in self._values:
            if key not in self._known:
                yield self._path(key)
        for table in self._tables:
            yield from table.unknown()

    def error(self, key: str, problem: str) -> TaskError:
        return TaskError(f"{self._file}: {self._path(key)} {problem}")

    def _get(self, key: str, kind: type | tuple[type, ...], wanted: str) -> Any:
        self._known.add(key)
        value = self._values.get(key)
        if value is not None and not isinstance(value, kind):
            raise self.error(key, f"must be {wanted}, not {value!r}")
        return value

    def _path(self, key: str) -> str:
        return f"{self._name}.{key}" if self._name else key
