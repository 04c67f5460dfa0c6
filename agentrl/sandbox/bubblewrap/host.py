"""What this machine allows: where bwrap is, which user ids a sandbox can have, and the fix when it cannot start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from agentrl.errors import UserError
from agentrl.sandbox.bubblewrap import bare_python
from agentrl.sandbox.supervisor import syscalls
from agentrl.sandbox.supervisor.launch import IdMap

RANGE_FIRST, RANGE_COUNT = 1_879_048_192, 65_536
"""Host ids of a root owner's sandboxes: above those of people, of containers of systemd and of most subuid files."""

_CAP_SETUID_BIT = 1 << syscalls.CAP_SETUID
_TRIAL_TIMEOUT_S = 20.0
_USERNS_HINT = (
    "allow user namespaces: `sysctl kernel.apparmor_restrict_unprivileged_userns=0` on Ubuntu 24.04, "
    "`sysctl kernel.unprivileged_userns_clone=1` on old Debian, `sysctl user.max_user_namespaces=10000` where it is 0, "
    "or `docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined --cap-add SYS_ADMIN` "
    "in a container"
)


@dataclass(frozen=True)
class Host:
    """The answer of `check_host`."""

    bwrap: str
    """Absolute path of bubblewrap."""
    ids: IdMap
    """A range of 65,536 when the owner may map one, else the owner's own id as root."""
    cgroups: bool = True
    """Whether to look for writable control groups; without them only rlimits hold."""


def check_host() -> Host:
    """Find what sandboxes need. Raises UserError with the fix; starts nothing that outlives the call."""
    if sys.platform != "linux":
        raise UserError(f"sandboxes need Linux, this is {sys.platform}")
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise UserError(
            "bubblewrap (bwrap) is not installed",
            hint="`apt-get install bubblewrap` on Debian and Ubuntu, `dnf install bubblewrap` on Fedora",
        )
    ids = _ids()
    _try_namespaces(bwrap, ids)
    return Host(os.path.realpath(bwrap), ids)


def _ids() -> IdMap:
    if os.geteuid() == 0 and _may_map_ranges():
        return IdMap(RANGE_FIRST, RANGE_COUNT)
    return IdMap(os.geteuid(), 1)


def _may_map_ranges() -> bool:
    """Root with CAP_SETUID, in a namespace that has the range itself."""
    status = Path("/proc/self/status").read_text()
    effective = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:"))
    ranges = [[int(word) for word in line.split()] for line in Path("/proc/self/uid_map").read_text().splitlines()]
    covered = any(first <= RANGE_FIRST and first + num >= RANGE_FIRST + RANGE_COUNT for first, _, num in ranges)
    return covered and bool(effective & _CAP_SETUID_BIT)


def _try_namespaces(bwrap: str, ids: IdMap) -> None:
    """Start the smallest sandbox in the way of all others, and see it end."""
    if not Path("/proc/self/ns/user").exists():
        raise UserError("this kernel has no user namespaces", hint="boot one with CONFIG_USER_NS=y")
    trial = (bwrap, "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "--proc", "/proc", "true")
    try:
        done = subprocess.run(
            bare_python.command("launch", "try_out", str(ids.first), str(ids.count), *trial),
            env=bare_python.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TRIAL_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(f"a trial sandbox did not end in {_TRIAL_TIMEOUT_S:g} s") from error
    if done.returncode != 0:
        raise UserError(f"bubblewrap cannot start a sandbox here: {done.stderr.strip()}", hint=_USERNS_HINT)
