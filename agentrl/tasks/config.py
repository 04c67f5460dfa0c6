"""Which tasks are trained on."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from agentrl.bounds import Count, CountOrZero, Seed, Text


class Family(Enum):
    """A generator of tasks that ships with agentrl."""

    none = "none"
    """Use the task folders in `tasks.path`."""
    boxes = "boxes"
    """Read a note, then act on what it says. For the tiny model."""
    shell_basics = "shell_basics"
    """What a shell user does all day: make, rename, copy, count, sort, search. For a small language model."""


@dataclass(frozen=True, kw_only=True)
class TasksConfig:
    family: Family = Family.none
    """Shipped generator, or none."""

    path: Text | None = None
    """Folder that holds task folders, Harbor's or Terminal-Bench 1's. Only with family none."""

    offline: bool = False
    """Take tasks that may use a network too, and give them none; off: they are left out, with the reason. Check them
    first: `agentrl tasks check` says which score without. Only with family none."""

    branch_from: Text | None = None
    """EPISODE@TURN, or RUN/EPISODE@TURN: every training episode begins where that one was after so many turns, with its
    tokens as context and a fork of its state; only its task trains. null: episodes begin with their task."""

    include: list[str] = field(default_factory=lambda: ["*"])
    """Shell patterns; tasks whose name matches any of them are used."""

    num_train: Count = 64
    """Training tasks that a generator makes. With a path: ignored (all folders but the held-out ones train)."""

    num_heldout: CountOrZero = 32
    """Tasks never trained on, for the evaluation before and after. With a path: taken from the seeded order's end."""

    seed: Seed = 0
    """Seed of the generator and of the held-out split; the order of training follows the run's `seed`."""
