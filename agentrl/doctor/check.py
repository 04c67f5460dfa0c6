"""What a look at the machine leads to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How good what was found is."""

    OK = "ok"
    """All there."""
    WEAK = "weak"
    """A run works, with a limit or feature less; `means` says which."""
    FAILS = "fails"
    """A launch with the packaged settings cannot work."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: Status
    found: str
    """What is there, in a few words."""
    means: str = ""
    """What is weaker or does not work because of it; empty if nothing."""
    fix: str = ""
    """The command or setting that changes it; empty if there is none."""


def can_launch(checks: Iterable[Check]) -> bool:
    return all(check.status is not Status.FAILS for check in checks)
