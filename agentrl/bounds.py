"""Ranges of configuration values, as types: `steps: Count = 25`.

A range is part of a field's type, so it is written once: `agentrl show --schema` prints it, composition checks it, and
`msgspec` checks it again when a resolved config is read back. NaN and infinity are refused for every number.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

Count: TypeAlias = Annotated[int, Meta(ge=1)]
"""A whole number of at least 1."""

CountOrZero: TypeAlias = Annotated[int, Meta(ge=0)]
"""A whole number of at least 0."""

Seed: TypeAlias = Annotated[int, Meta(ge=0, le=2**32 - 1)]
"""A seed that every generator in use accepts."""

Seconds: TypeAlias = Annotated[float, Meta(gt=0)]
"""A duration above 0."""

Positive: TypeAlias = Annotated[float, Meta(gt=0)]
"""A number above 0."""

Factor: TypeAlias = Annotated[float, Meta(ge=1)]
"""A factor of at least 1."""

NonNegative: TypeAlias = Annotated[float, Meta(ge=0)]
"""A number of at least 0."""

Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
"""A share, from 0 to 1."""

PositiveShare: TypeAlias = Annotated[float, Meta(gt=0, le=1)]
"""A share above 0, up to 1."""

Decay: TypeAlias = Annotated[float, Meta(ge=0, lt=1)]
"""A decay rate, from 0 up to but not 1."""

Penalty: TypeAlias = Annotated[float, Meta(ge=-2, le=2)]
"""A sampling penalty, from -2 to 2."""

TopK: TypeAlias = Annotated[int, Meta(ge=-1)]
"""A top-k filter: -1 is off."""

Text: TypeAlias = Annotated[str, Meta(min_length=1)]
"""Text that is not empty."""

Swing: TypeAlias = Annotated[
    str,
    Meta(pattern=r"^(all|none|[1-9][0-9]{0,3})$", description="the form all, none, or a number of engines"),
]
"""Which engines share their GPU with the trainer."""

RunName: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$",
        description="at most 63 letters, digits, dots, dashes and underscores, a letter or digit first",
    ),
]
"""A name that is safe as a folder's name and a label."""
