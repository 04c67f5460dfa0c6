"""Entry of a trial process: the smallest sandbox, made in the way of all others, to see whether this machine can."""

from __future__ import annotations

import json
import os
import sys

from agentrl.sandbox.supervisor.stage import BASE, Stack, become_root, enter_stage
from agentrl.sandbox.supervisor.userns import IdMap, Standing, enter_user_namespace, take_standing

_DISK_BYTES = 1 << 20


def main() -> None:
    """Arguments: how to come to be root, ids, folder and place of the stage (empty: without), links, bwrap command."""
    standing, first, count, folder, place, merged, *argv = sys.argv[1:]
    ids = IdMap(int(first), int(count))
    try:
        take_standing(Standing(standing))
        if folder:
            _enter_root(folder, place, ids, tuple(json.loads(merged)), userxattr=standing != Standing.ROOT)
        enter_user_namespace(ids)
        os.execve(argv[0], argv, {"PATH": "/usr/bin:/bin"})
    except OSError as error:
        sys.exit(str(error))


def _enter_root(folder: str, place: str, ids: IdMap, merged: tuple[str, ...], *, userxattr: bool) -> None:
    stage = enter_stage(folder, place, ids, merged, userxattr=userxattr)
    names = ("usr", "etc", "proc", "dev", "tmp", *merged)
    stage.base([{"path": f"/{name}", "kind": "dir", "mode": 0o755} for name in names], b"")
    layer = stage.disk(_DISK_BYTES).new_layer()
    become_root(stage.ground, Stack((BASE,)), layer, writable_system=False)
