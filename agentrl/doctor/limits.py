"""Control groups: which limits hold here, and how to get those that do not. Facts by `look`, judged by `judge`."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.doctor.check import Check, Status
from agentrl.sandbox.supervisor import cgroups
from agentrl.sandbox.supervisor.cgroups import Hierarchies


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What decides over limits."""

    hierarchies: Hierarchies
    """What a supervisor would get."""
    v2_mount: str | None
    """Where the v2 hierarchy is mounted."""
    v2_controllers: frozenset[str] = field(default_factory=frozenset)
    """What it could hand out at its top."""
    root: bool
    container: bool
    systemd: bool


def look() -> Facts:
    """Make control groups as a supervisor does, and remove them."""
    found = cgroups.create_base(f"agentrl-doctor-{os.getpid()}")
    for base in found.bases():
        cgroups.remove_base(base)
    v2_mount = cgroups.mounts().get("")
    offered = Path(v2_mount, "cgroup.controllers").read_text().split() if v2_mount else []
    return Facts(
        hierarchies=found,
        v2_mount=v2_mount,
        v2_controllers=frozenset(offered),
        root=os.geteuid() == 0,
        container=Path("/.dockerenv").exists() or Path("/run/.containerenv").exists(),
        systemd=Path("/run/systemd/system").is_dir() and shutil.which("systemd-run") is not None,
    )


def judge(facts: Facts) -> list[Check]:
    """One check for memory and processes, one for CPU, one for freezing."""
    found = facts.hierarchies
    fix = _fix(facts)
    if found.version == 0:
        means = (
            "memory is limited per process, not per sandbox, and out-of-memory kills are not told from failures; "
            "processes are limited by RLIMIT_NPROC"
        )
        memory = Check(name="limits", status=Status.WEAK, found="rlimits only", means=means, fix=fix)
    else:
        assert found.memory is not None
        where = f"cgroup v{found.version}, writable at {Path(found.memory).parent}"
        memory = Check(name="limits", status=Status.OK, found=f"memory and processes by {where}")
    cpu, freezer = (
        Check(name=name, status=Status.OK, found=f"cgroup at {Path(base).parent}")
        if base
        else Check(name=name, status=Status.WEAK, found="no cgroup", means=means, fix=fix)
        for name, base, means in (
            ("cpu limit", found.cpu, "the `cpus` of a task are not enforced"),
            ("freezer", found.freezer, "suspended sandboxes are stopped by SIGSTOP, which their processes can see"),
        )
    )
    return [memory, cpu, freezer]


def _fix(facts: Facts) -> str:
    """How to get a writable v2 hierarchy with all controllers."""
    if facts.container:
        return "start the container with `--privileged --cgroupns=private`"
    if facts.v2_mount is None:
        return "boot with `systemd.unified_cgroup_hierarchy=1` on the kernel's command line"
    if not {"memory", "pids", "cpu"} <= facts.v2_controllers:
        return "boot with `systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all`: cgroup v1 holds the controllers"
    if facts.systemd:
        user = "" if facts.root else "--user "
        return f"`systemd-run {user}--scope -p Delegate=yes agentrl launch FILE`"
    if facts.root:
        return f"`echo '+memory +pids +cpu' > {facts.v2_mount}/cgroup.subtree_control`"
    return "run as root, or have root give you a delegated cgroup"
