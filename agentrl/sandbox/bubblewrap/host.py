"""What this machine allows: where bwrap is, which user ids a sandbox can have, and the fix when it cannot start."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from agentrl.errors import UserError
from agentrl.sandbox.bubblewrap import bare_python
from agentrl.sandbox.bubblewrap.layout import merged_folders, root_place
from agentrl.sandbox.supervisor import syscalls
from agentrl.sandbox.supervisor.userns import IdMap, Standing, subordinate

RANGE_FIRST, RANGE_COUNT = 1_879_048_192, 65_536
"""Host ids of a root owner's sandboxes: above those of people, of containers of systemd and of most subuid files."""

_CAPS_FOR_RANGE = (1 << syscalls.CAP_SETUID) | (1 << syscalls.CAP_SETGID)
_CAP_SYS_ADMIN_BIT = 1 << 21
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
    """A range of 65,536 when the owner may map one, else one id, root's."""
    cgroups: bool = True
    """Whether to look for writable control groups; without them only rlimits hold."""
    standing: Standing = Standing.NONE
    """How the supervisor comes to be root."""
    no_overlay: str | None = "it was not asked for"
    """Why roots cannot be overlays, and nothing can be snapshotted or built; None if they can."""

    @property
    def overlay(self) -> bool:
        """Whether roots are overlays."""
        return self.no_overlay is None


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
    if not Path("/proc/self/ns/user").exists():
        raise UserError("this kernel has no user namespaces", hint="boot one with CONFIG_USER_NS=y")
    return best_host(os.path.realpath(bwrap))


def best_host(bwrap: str) -> Host:
    """The most that a trial sandbox shows to work: with overlays, else without. Raises UserError if neither does."""
    problem = None
    if merged_folders() is None:
        problem = "this host's /bin or /lib is a folder of its own, not a link into /usr"
    else:
        for standing, ids in _standings():
            host = Host(bwrap, ids, standing=standing, no_overlay=None)
            problem = _try(host)
            if problem is None:
                return host
    plain = Host(bwrap, _plain_ids(), no_overlay=problem)
    refused = _try(plain)
    if refused is not None:
        raise UserError(f"bubblewrap cannot start a sandbox here: {refused}", hint=_USERNS_HINT)
    return plain


def _standings() -> list[tuple[Standing, IdMap]]:
    """Ways to mount overlays, the best first."""
    capabilities = _capabilities()
    if os.geteuid() == 0 and capabilities & _CAP_SYS_ADMIN_BIT:
        return [(Standing.ROOT, _plain_ids())]
    ways = [(Standing.SINGLE, IdMap(0, 1))]
    if shutil.which("newuidmap") and subordinate("/etc/subuid") is not None and subordinate("/etc/subgid") is not None:
        ways.insert(0, (Standing.SUBUID, IdMap(0, RANGE_COUNT)))
    return ways


def _plain_ids() -> IdMap:
    if os.geteuid() == 0 and _may_map_ranges():
        return IdMap(RANGE_FIRST, RANGE_COUNT)
    return IdMap(os.geteuid(), 1)


def _may_map_ranges() -> bool:
    """Root with CAP_SETUID and CAP_SETGID, in a namespace that has the range itself."""
    ranges = [[int(word) for word in line.split()] for line in Path("/proc/self/uid_map").read_text().splitlines()]
    covered = any(first <= RANGE_FIRST and first + num >= RANGE_FIRST + RANGE_COUNT for first, _, num in ranges)
    return covered and _capabilities() & _CAPS_FOR_RANGE == _CAPS_FOR_RANGE


def _capabilities() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:"))


def _try(host: Host) -> str | None:
    """Start the smallest sandbox in the way of all others, and see it end; or what went wrong."""
    with tempfile.TemporaryDirectory(prefix="agentrl-trial-") as folder:
        root = ("--bind", root_place(), "/") if host.overlay else ("--ro-bind", "/", "/")
        bwrap = (host.bwrap, "--unshare-pid", "--unshare-net", *root, "--proc", "/proc", "true")
        stage = folder if host.overlay else ""
        ids = (str(host.ids.first), str(host.ids.count))
        merged = json.dumps(merged_folders() or ())
        try:
            done = subprocess.run(
                bare_python.command("trial", "main", host.standing, *ids, stage, root_place(), merged, *bwrap),
                env=bare_python.environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_TRIAL_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"a trial sandbox did not end in {_TRIAL_TIMEOUT_S:g} s"
    return None if done.returncode == 0 else done.stderr.strip() or f"it ended with {done.returncode}"
