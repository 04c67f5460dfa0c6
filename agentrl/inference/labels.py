"""What engines call the weights that they serve: SGLang's `weight_version`, a text that comes back with every answer.

`7` is policy version 7. `7@engine-1` is the same, signed by the engine: behind a router an answer's label is the only
thing that says who gave it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

NOT_OURS = -1
"""Version of weights that this run did not give the engine, as those of a server that was just attached."""


@dataclass(frozen=True)
class Label:
    version: int
    engine: str | None


def weight_label(version: int, engine: str | None) -> str:
    """`engine`: who signs; None: nobody."""
    return str(version) if engine is None else f"{version}@{engine}"


def parse_label(text: str) -> Label | None:
    """None if it is not one of ours."""
    found = re.fullmatch(r"(-?\d+)(?:@(.+))?", text)
    return Label(int(found[1]), found[2]) if found else None
