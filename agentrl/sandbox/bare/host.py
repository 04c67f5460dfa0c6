"""Whether this machine may run commands without isolation, and what to say about it."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection

from agentrl.errors import UserError
from agentrl.sandbox.bare.places import in_the_way
from agentrl.sandbox.supervisor.bare import own_name

ALLOWED = "AGENTRL_ALLOW_NO_ISOLATION"
"""Set to 1 by whoever knows that a machine is thrown away: nothing on it tells a shared one from one that is."""


def danger() -> str:
    """What a run without isolation does, in one line."""
    return (
        f"sandbox.isolation is none: commands of the model run on this machine with the rights of {own_name()}, "
        "its files and its network"
    )


def refusal(*, root: bool, allowed: bool, writable: bool, taken: Collection[str]) -> tuple[str, str] | None:
    """Why a machine may not, and the hint; None if it may. `writable`: whether we may make folders in /."""
    if root and not allowed:
        return (
            "sandbox.isolation=none as root gives the whole machine to the model",
            f"set {ALLOWED}=1 on a machine that is thrown away; else use sandbox.isolation=namespaces",
        )
    if not writable:
        return (
            f"sandbox.isolation=none makes /tests, /logs and a task's folder in /, which {own_name()} may not",
            "run as root in a container that is thrown away",
        )
    if taken:
        return (
            f"sandbox.isolation=none would remove {', '.join(taken)} of this machine",
            "`agentrl stop RUN` of a run that was killed removes what that left; else move it away yourself",
        )
    return None


def check_machine(left: Collection[str] = ()) -> None:
    """Raises UserError where commands may not run without isolation. `left`: see `places.in_the_way`."""
    if sys.platform != "linux":
        raise UserError(f"sandboxes need Linux, this is {sys.platform}")
    refused = _refusal(left)
    if refused is not None:
        raise UserError(refused[0], hint=refused[1])


def obstacle() -> str | None:
    """Why commands may not run here without isolation; None if they may."""
    refused = _refusal(())
    return None if refused is None else refused[0]


def _refusal(left: Collection[str]) -> tuple[str, str] | None:
    return refusal(
        root=os.geteuid() == 0,
        allowed=os.environ.get(ALLOWED) == "1",
        writable=os.access("/", os.W_OK | os.X_OK),
        taken=in_the_way(left=left),
    )
