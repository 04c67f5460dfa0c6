"""Probability laws, as they are written in YAML: `{law: lognormal, median: 25, sigma: 0.75, cap: 100}`.

A law is a value; the random generator is passed in.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import pairwise
from random import Random
from statistics import NormalDist
from typing import Annotated

import msgspec
from msgspec import Meta

Above0 = Annotated[float, Meta(gt=0)]
AtLeast0 = Annotated[float, Meta(ge=0)]
ShareOf1 = Annotated[float, Meta(ge=0, le=1)]


class Law(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="law"):
    """Base of all laws: a number at every call of `sample`."""

    def sample(self, random: Random) -> float:
        raise TypeError(f"{type(self).__name__} is no law by itself")


class Constant(Law, frozen=True, kw_only=True, tag="constant"):
    """Always the same."""

    value: float

    def sample(self, random: Random) -> float:
        return self.value


class Uniform(Law, frozen=True, kw_only=True, tag="uniform"):
    """Evenly between two bounds."""

    low: float
    high: float

    def sample(self, random: Random) -> float:
        return random.uniform(self.low, self.high)


class LogNormal(Law, frozen=True, kw_only=True, tag="lognormal"):
    """The logarithm is normal with standard deviation `sigma`; half of the values lie below `median`."""

    median: Above0
    sigma: AtLeast0
    cap: Above0 = math.inf

    def at(self, z: float) -> float:
        """The value whose logarithm lies `z` standard deviations above the middle."""
        return min(self.median * math.exp(self.sigma * z), self.cap)

    def sample(self, random: Random) -> float:
        return self.at(random.gauss(0.0, 1.0))


class Pareto(Law, frozen=True, kw_only=True, tag="pareto"):
    """At least `minimum`; above x lies a share of (minimum / x) ** alpha."""

    minimum: Above0
    alpha: Above0
    cap: Above0 = math.inf

    def sample(self, random: Random) -> float:
        return min(self.minimum * random.paretovariate(self.alpha), self.cap)


class Beta(Law, frozen=True, kw_only=True, tag="beta"):
    """A share between 0 and 1."""

    a: Above0
    b: Above0

    def sample(self, random: Random) -> float:
        return random.betavariate(self.a, self.b)


class Quantiles(Law, frozen=True, kw_only=True, tag="quantiles"):
    """What was measured: the value that each share of all does not exceed, with straight lines between."""

    shares: Annotated[tuple[float, ...], Meta(min_length=2)]
    """Ascending, from 0 to 1."""
    values: Annotated[tuple[float, ...], Meta(min_length=2)]
    """As many, the smallest first and the largest last."""

    def __post_init__(self) -> None:
        if len(self.shares) != len(self.values) or (self.shares[0], self.shares[-1]) != (0, 1):
            raise ValueError("quantiles need as many shares as values, from 0 to 1")
        if any(low >= high for low, high in pairwise(self.shares)) or any(a > b for a, b in pairwise(self.values)):
            raise ValueError("shares and values of quantiles must ascend")

    @property
    def cap(self) -> float:
        """The largest value there is."""
        return self.values[-1]

    def at_share(self, share: float) -> float:
        """The value that `share` (0 to 1) of all do not exceed."""
        index = min(max(bisect_right(self.shares, share) - 1, 0), len(self.shares) - 2)
        low, high = self.shares[index], self.shares[index + 1]
        return self.values[index] + (self.values[index + 1] - self.values[index]) * (share - low) / (high - low)

    def at(self, z: float) -> float:
        """The value at the share of a standard normal variable below `z`: as `LogNormal.at`, for correlated draws."""
        return self.at_share(_NORMAL.cdf(z))

    def sample(self, random: Random) -> float:
        return self.at_share(random.random())


_NORMAL = NormalDist()


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One component of a mixture."""

    weight: Above0
    of: AnyLaw


class Mixture(Law, frozen=True, kw_only=True, tag="mixture"):
    """One of several laws, chosen by weight."""

    parts: Annotated[tuple[Part, ...], Meta(min_length=1)]
    cap: Above0 = math.inf

    def sample(self, random: Random) -> float:
        left = random.random() * sum(part.weight for part in self.parts)
        for part in self.parts[:-1]:
            if left < part.weight:
                return min(part.of.sample(random), self.cap)
            left -= part.weight
        return min(self.parts[-1].of.sample(random), self.cap)


AnyLaw = Constant | Uniform | LogNormal | Pareto | Beta | Quantiles | Mixture
