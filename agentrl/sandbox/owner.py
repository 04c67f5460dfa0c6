"""Whose sandboxes they are, where something beside this process must know it: a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class SandboxOwner:
    """A run, in one of its controllers' lives."""

    run: str
    epoch: int
    """Of the ledger: what carries a lower one is a dead controller's."""
    reference: dict[str, Any] | None = None
    """The Kubernetes object that the cluster deletes them with (an ownerReference); None: there is none."""
