"""How long things take for pods, and what goes wrong: the weather of a test."""

from __future__ import annotations

import fnmatch
import random
from collections.abc import Callable
from dataclasses import dataclass

Seconds = float | Callable[[random.Random], float]
"""A constant, or a draw."""


@dataclass(frozen=True)
class PodLaw:
    """All are seconds unless said otherwise."""

    schedule_s: Seconds = 0.0
    """From creation to the binding to a node."""
    pull_s: Seconds = 0.0
    """To pull an image that its node does not have yet."""
    start_s: Seconds = 0.0
    """To make and start a container."""
    ready_s: Seconds = 0.0
    """Containers without processes: from their start until their probes succeed."""
    exit_after_s: Seconds | None = None
    """Containers without processes: how long they run. None: until they are stopped."""
    exit_code: int = 0
    """Containers without processes: how they end."""
    stop_s: Seconds = 0.0
    """Containers without processes: from SIGTERM to the end."""
    missing_images: tuple[str, ...] = ("missing/*",)
    """Patterns of images that no registry has."""
    backoff_s: float = 10.0
    """The first wait before a container is started again, or an image is asked for again; it doubles up to 5 min."""
    watch_interval_s: float | None = None
    """Seconds between probes, where a test does not want to wait for the pod's own period. None: as the pod says."""

    def image_is_missing(self, image: str) -> bool:
        return any(fnmatch.fnmatch(image, pattern) for pattern in self.missing_images)


def draw(value: Seconds, chance: random.Random) -> float:
    return value(chance) if callable(value) else value
