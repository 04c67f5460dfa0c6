"""What the rest of a run needs: Python and its packages, disk, memory, git, accelerators. Imports none of them."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from agentrl.doctor.check import Check, Status

_GIB = 1 << 30
_LITTLE_DISK_GIB = 5
"""Checkpoints and published weights of a tiny model take megabytes, of a small real one 2 to 4 GB."""
_FEW_FILES = 1024
"""Descriptors; each sandbox takes about ten of the supervisor's, each request in flight one of the controller's."""


def check_machine(runs_dir: Path) -> list[Check]:
    return [
        judge_python(platform.python_version(), _version("torch")),
        judge_disk(runs_dir, writable=_writable(runs_dir), free_gib=shutil.disk_usage(_existing(runs_dir)).free / _GIB),
        judge_memory(_memory_gib(), os.cpu_count() or 1),
        judge_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
        judge_git(_first_line(["git", "--version"])),
        judge_gpus(_first_lines(["nvidia-smi", "-L"])),
    ]


def judge_python(version: str, torch: str | None) -> Check:
    if torch is None:
        means = "neither the trainer nor the embedded engine starts"
        fix = f"`{sys.executable} -m pip install 'torch>=2.10'`"
        return Check(name="python", status=Status.FAILS, found=f"{version}, no torch", means=means, fix=fix)
    return Check(name="python", status=Status.OK, found=f"{version}, torch {torch}")


def judge_disk(runs_dir: Path, *, writable: bool, free_gib: float) -> Check:
    found = f"{free_gib:.1f} GiB free for {runs_dir}"
    if not writable:
        fix = "choose another with cluster.runs_dir=DIR"
        means = "no run can be recorded"
        return Check(name="disk", status=Status.FAILS, found=f"{runs_dir} cannot be written", means=means, fix=fix)
    if free_gib < _LITTLE_DISK_GIB:
        means = "checkpoints of a real model may not fit"
        fix = "free some, or choose another disk with cluster.runs_dir=DIR"
        return Check(name="disk", status=Status.WEAK, found=found, means=means, fix=fix)
    return Check(name="disk", status=Status.OK, found=found)


def judge_memory(total_gib: float, cpus: int) -> Check:
    return Check(name="memory", status=Status.OK, found=f"{total_gib:.1f} GiB, {cpus} CPUs")


def judge_files(most: int) -> Check:
    if most != resource.RLIM_INFINITY and most < _FEW_FILES:
        means = "many sandboxes or requests at once fail"
        fix = "`ulimit -Hn 65536` as root"
        return Check(name="open files", status=Status.WEAK, found=f"at most {most}", means=means, fix=fix)
    found = "no limit" if most == resource.RLIM_INFINITY else f"at most {most}"
    return Check(name="open files", status=Status.OK, found=found)


def judge_git(version: str | None) -> Check:
    if version is None:
        means = "task sets cannot be fetched from repositories"
        return Check(name="git", status=Status.WEAK, found="not installed", means=means, fix="`apt-get install git`")
    return Check(name="git", status=Status.OK, found=version.removeprefix("git version "))


def judge_gpus(names: list[str]) -> Check:
    found = "; ".join(name.partition(" (UUID")[0] for name in names) or "none: engines and trainer run on the CPU"
    return Check(name="gpus", status=Status.OK, found=found)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _existing(path: Path) -> Path:
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _writable(path: Path) -> bool:
    folder = _existing(path)
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB


def _first_line(command: list[str]) -> str | None:
    lines = _first_lines(command)
    return lines[0] if lines else None


def _first_lines(command: list[str]) -> list[str]:
    """What a program prints; nothing where it is not there or fails."""
    if shutil.which(command[0]) is None:
        return []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []
