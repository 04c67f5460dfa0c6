"""What sandboxes need of the machine: bubblewrap, namespaces, user ids, the system call filter, file systems."""

from __future__ import annotations

import getpass
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from agentrl.doctor.check import Check, Status
from agentrl.errors import UserError
from agentrl.sandbox.bubblewrap import check_host
from agentrl.sandbox.supervisor import seccomp

_IDMAP_KERNEL = (5, 12)
"""mount_setattr(2) with MOUNT_ATTR_IDMAP."""
_SUBUIDS = 65_536


def check_sandboxes() -> list[Check]:
    """In the order in which one needs them; ends early where nothing further can be said."""
    if sys.platform != "linux":
        found, fix = f"this is {sys.platform}", "run on Linux, or in a Linux virtual machine"
        return [Check(name="linux", status=Status.FAILS, found=found, means="sandboxes need Linux", fix=fix)]
    bwrap = shutil.which("bwrap")
    return [
        Check(name="linux", status=Status.OK, found=f"{platform.release()} on {platform.machine()}"),
        judge_bubblewrap(bwrap, _version_of(bwrap)),
        *([] if bwrap is None else _trial()),
        judge_filter(supported=seccomp.supported(), machine=platform.machine()),
        judge_overlay(known=_overlay_known(), idmap=_kernel() >= _IDMAP_KERNEL),
    ]


def judge_bubblewrap(path: str | None, version: str) -> Check:
    if path is None:
        fix = "`apt-get install bubblewrap` on Debian and Ubuntu, `dnf install bubblewrap` on Fedora"
        means = "no sandbox can start"
        return Check(name="bubblewrap", status=Status.FAILS, found="not installed", means=means, fix=fix)
    return Check(name="bubblewrap", status=Status.OK, found=f"{version} at {path}")


def judge_filter(*, supported: bool, machine: str) -> Check:
    if supported:
        return Check(name="seccomp", status=Status.OK, found="system call filters work")
    return Check(
        name="seccomp",
        status=Status.FAILS,
        found=f"no filter for {machine}, or a kernel without CONFIG_SECCOMP_FILTER",
        means="sandboxes would stand before the whole kernel",
        fix="set sandbox.seccomp=false if you accept that",
    )


def judge_overlay(*, known: bool, idmap: bool) -> Check:
    if known and idmap:
        return Check(name="overlay", status=Status.OK, found="overlay file system and idmapped mounts")
    lacking = "idmapped mounts (Linux 5.12)" if known else "the overlay file system"
    fix = "use a newer kernel" if known else "`modprobe overlay`"
    means = "images cannot be built, and snapshots and forks are not there"
    return Check(name="overlay", status=Status.WEAK, found=f"no {lacking}", means=means, fix=fix)


def judge_ids(*, ranged: bool, root: bool, user: str, delegated: bool) -> Check:
    """Which users there can be inside."""
    if ranged:
        return Check(name="user ids", status=Status.OK, found="65,536 per sandbox")
    if root:
        fix = "start the container with `--cap-add SETUID --cap-add SETGID`, outside of a user namespace of one id"
    elif delegated:
        fix = "run as root; your /etc/subuid range is not used by this version"
    else:
        fix = f"run as root, or `sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}`"
    means = "inside there is only root: chown fails, and tasks with another user are refused"
    return Check(name="user ids", status=Status.WEAK, found="one", means=means, fix=fix)


def _trial() -> list[Check]:
    """Start the smallest sandbox."""
    try:
        host = check_host()
    except UserError as error:
        means = "no sandbox can start"
        return [Check(name="namespaces", status=Status.FAILS, found=error.message, means=means, fix=error.hint or "")]
    user = getpass.getuser()
    ids = judge_ids(
        ranged=host.ids.ranged, root=os.geteuid() == 0, user=user, delegated=_has_subuids(Path("/etc/subuid"), user)
    )
    return [Check(name="namespaces", status=Status.OK, found="a trial sandbox started"), ids]


def _has_subuids(file: Path, user: str) -> bool:
    try:
        lines = [line.split(":") for line in file.read_text().splitlines()]
    except OSError:
        return False
    return any(len(line) == 3 and line[0] == user and int(line[2]) >= _SUBUIDS for line in lines)


def _version_of(bwrap: str | None) -> str:
    if bwrap is None:
        return ""
    said = subprocess.run([bwrap, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    return said.split()[-1] if said.split() else "a version that it does not tell"


def _overlay_known() -> bool:
    """Whether the kernel has it, or a module that loads by itself."""
    listed = Path("/proc/filesystems").read_text().split()
    modules = Path("/lib/modules", platform.release())
    return "overlay" in listed or any(modules.glob("kernel/fs/overlayfs/overlay.ko*"))


def _kernel() -> tuple[int, int]:
    major, minor = platform.release().split(".")[:2]
    return int(major), int("".join(filter(str.isdigit, minor)) or 0)
