"""Sandboxes without isolation, on a machine made for it: own processes, an empty / beside the host's programs.

They make /app, /tests and /logs where they are, and kill. So their tests (tests/contracts/bare_sandbox.py) run in a
pytest of their own, inside bubblewrap.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import agentrl
from agentrl.sandbox.bare.host import ALLOWED

CHECKOUT = Path(agentrl.__file__).parents[1]
_HIDDEN = ("app", "dev", "logs", "proc", "solution", "tests", "tmp", "var")
"""Folders of / that the machine has of its own, or not at all."""


def disposable(*command: str) -> list[str]:
    """The command line that runs a command on such a machine, as its root."""
    argv = ["bwrap", "--unshare-all", "--die-with-parent", "--uid", "0", "--gid", "0", "--tmpfs", "/"]
    for path in sorted(Path("/").iterdir()):
        if path.name in _HIDDEN or not path.is_dir():
            continue
        if path.is_symlink():
            argv += ["--symlink", str(path.readlink()), str(path)]
        else:
            argv += ["--ro-bind", str(path), str(path)]
    argv += ["--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--tmpfs", "/tmp", "--dir", "/var"]
    for path in {CHECKOUT, Path(sys.prefix)}:
        argv += ["--ro-bind", str(path), str(path)]
    return [*argv, "--setenv", ALLOWED, "1", "--chdir", str(CHECKOUT), *command]


async def test_bare_sandboxes_keep_their_promises() -> None:
    pytest = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider")
    process = await asyncio.create_subprocess_exec(
        *disposable(*pytest, "tests/contracts/bare_sandbox.py"),
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    assert b" skipped" not in said
