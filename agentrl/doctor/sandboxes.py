"""What sandboxes need of the machine: bubblewrap, namespaces, user ids, the system call filter, file systems."""

from __future__ import annotations

import os
import platform
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

from agentrl.doctor.check import Check, Status
from agentrl.errors import UserError
from agentrl.sandbox import bare
from agentrl.sandbox.bubblewrap import check_host
from agentrl.sandbox.supervisor import seccomp
from agentrl.sandbox.supervisor.userns import Standing

_OVERLAY_KERNEL = (5, 12)
"""Overlays in user namespaces came with 5.11, mounts with mapped ids with 5.12."""


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
        judge_bare(bare.obstacle()),
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


def judge_bare(obstacle: str | None) -> Check:
    """What `sandbox.isolation=none` would be here. `obstacle`: why it is refused."""
    if obstacle is not None:
        return Check(name="no isolation", status=Status.OK, found=f"refused: {obstacle}")
    found = "possible with sandbox=bare, where this machine is thrown away afterwards"
    return Check(name="no isolation", status=Status.OK, found=found, means=bare.danger())


def judge_overlay(problem: str | None, *, kernel: tuple[int, int], known: bool) -> Check:
    """`problem`: why the trial could not use one. `known`: whether the kernel has the file system."""
    if problem is None:
        return Check(name="overlay", status=Status.OK, found="roots are overlays")
    if not known:
        fix = "`modprobe overlay`"
    elif kernel < _OVERLAY_KERNEL:
        fix = f"use Linux {'.'.join(map(str, _OVERLAY_KERNEL))} or newer"
    else:
        fix = "run as root, or in a container with `--cap-add SYS_ADMIN --security-opt apparmor=unconfined`"
    means = "images with steps cannot be built, and there are no snapshots and forks"
    return Check(name="overlay", status=Status.WEAK, found=problem, means=means, fix=fix)


def judge_ids(*, ranged: bool, standing: Standing, root: bool, helper: bool, user: str) -> Check:
    """Which users there can be inside. `helper`: whether newuidmap is installed."""
    if ranged:
        how = ", by newuidmap" if standing is Standing.SUBUID else ""
        return Check(name="user ids", status=Status.OK, found=f"65,536 per sandbox{how}")
    if root:
        fix = "start the container with `--cap-add SETUID --cap-add SETGID`, outside of a user namespace of one id"
    else:
        delegate = f"`sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}`"
        fix = delegate if helper else f"`apt-get install uidmap` and {delegate}"
    means = "inside there is only root: chown fails, and tasks with another user are refused"
    return Check(name="user ids", status=Status.WEAK, found="one", means=means, fix=fix)


def _trial() -> list[Check]:
    """Start the smallest sandbox."""
    try:
        host = check_host()
    except UserError as error:
        means = "no sandbox can start"
        return [Check(name="namespaces", status=Status.FAILS, found=error.message, means=means, fix=error.hint or "")]
    ids = judge_ids(
        ranged=host.ids.ranged,
        standing=host.standing,
        root=os.geteuid() == 0,
        helper=shutil.which("newuidmap") is not None,
        user=_user_name(),
    )
    return [
        Check(name="namespaces", status=Status.OK, found="a trial sandbox started"),
        ids,
        judge_overlay(host.no_overlay, kernel=_kernel(), known=_overlay_known()),
    ]


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container started with a number
        return str(os.geteuid())


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
