"""Sandboxes of owners who are not root: what a single id and a range of /etc/subuid give, and what they cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_UID = 54321
_OWNER = """
import asyncio, json, sys
from pathlib import Path
from agentrl.errors import ImageError
from agentrl.sandbox.bubblewrap import BubblewrapProvider, check_host
from agentrl.sandbox.config import SandboxConfig
from agentrl.sandbox.provider import Add, Copy, Image, Run, SandboxSpec

async def main(folder):
    host = check_host()
    provider = BubblewrapProvider(SandboxConfig(cache_dir=str(folder / "cache")), state_dir=folder / "state", host=host)
    told = {"standing": host.standing, "overlay": host.overlay}

    async def says(name, sandbox, script):
        result = await sandbox.exec(script, timeout_s=60)
        told[name] = (result.stdout + result.stderr).decode()

    spec = SandboxSpec(image=Image(workdir="/app"))
    sandbox = await provider.create(spec)
    await says("made", sandbox, "id -u; echo x > f; rm -r /home; mkdir /home; ls -A /home; stat -c %U f /etc")
    await says("chown", sandbox, "chown 33:34 f; stat -c %u:%g f")
    fork = await provider.create(spec, snapshot=await sandbox.snapshot())
    await says("fork", fork, "ls -A /home; cat f; stat -c %u f")
    run = Run(argv=("sh", "-ec", "echo tool > /usr/local/bin/tool; rm /usr/bin/yes; mkdir /usr/share/new"))
    built = await provider.create(SandboxSpec(image=Image(steps=(run,))))
    await says("built", built, "cat /usr/local/bin/tool; ls /usr/bin/yes; stat -c %u /usr/share/new; touch /usr/new")
    owned = Add(copies=(Copy(source=Path("/etc/hostname"), target="/opt/x"),), owner="5")
    try:
        other = await provider.create(SandboxSpec(image=Image(steps=(owned,))))
        await says("owned", other, "stat -c %u /opt/x")
    except ImageError as error:
        told["owned"] = str(error)
    await provider.close()
    print(json.dumps(told))

asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that any user can reach."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        if os.geteuid() == 0:
            os.chown(name, _UID, _UID)
        yield Path(name)


def ask(folder: Path, *prefix: str) -> dict[str, Any]:
    """What an owner without rights is told; it may only read our Python, wherever that lies."""
    reads = "-all,+dac_read_search"
    drop = ("--clear-groups", f"--inh-caps={reads}", f"--ambient-caps={reads}")
    humble = ("setpriv", f"--reuid={_UID}", f"--regid={_UID}", *drop) if os.geteuid() == 0 else ()
    command = [*prefix, *humble, sys.executable, "-c", _OWNER, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def check_common(told: dict[str, Any]) -> None:
    assert told["overlay"]
    assert told["made"] == "0\nroot\nroot\n"
    assert told["built"] == "tool\n0\nls: cannot access '/usr/bin/yes': No such file or directory\n"


def test_a_single_id_gives_overlays_and_one_user(folder: Path) -> None:
    told = ask(folder)
    check_common(told)
    assert told["standing"] == "single"
    assert "Invalid argument" in told["chown"] and told["fork"] == "x\n0\n"
    assert "maps only root" in told["owned"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can lend a range of ids to a user")
def test_a_range_of_subuid_gives_all_users(folder: Path) -> None:
    """User and range are written over /etc/passwd and /etc/subuid in a mount namespace of the test's own."""
    ranges, users = folder / "ranges", folder / "users"
    ranges.write_text("tester:400000:65536\n")
    users.write_text(f"{Path('/etc/passwd').read_text()}tester:x:{_UID}:{_UID}::/:/bin/sh\n")
    lend = 'for f in subuid subgid; do mount --bind $0 /etc/$f; done; mount --bind $1 /etc/passwd; shift; exec "$@"'
    told = ask(folder, "unshare", "--mount", "sh", "-ec", lend, str(ranges), str(users))
    check_common(told)
    if told["standing"] == "single":
        assert not Path("/usr/bin/newuidmap").exists(), "the only reason for less"
        return
    assert told["standing"] == "subuid"
    assert told["chown"] == "33:34\n" and told["fork"] == "x\n33\n"
    assert told["owned"] == "5\n"
