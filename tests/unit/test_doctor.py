"""What `agentrl doctor` makes of what it finds, and that it looks at this machine without leaving anything."""

from __future__ import annotations

import json
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.cli.main import main
from agentrl.doctor import limits, machine, sandboxes
from agentrl.doctor.check import Check, Status, can_launch
from agentrl.sandbox.supervisor.cgroups import Hierarchies
from agentrl.sandbox.supervisor.userns import Standing

V2 = Hierarchies(2, memory="/g/x", pids="/g/x", cpu="/g/x", freezer="/g/x")
BARE = limits.Facts(
    hierarchies=Hierarchies(0),
    v2_mount="/sys/fs/cgroup",
    v2_controllers=frozenset({"memory", "pids", "cpu", "io"}),
    root=True,
    container=False,
    systemd=False,
)


def statuses(checks: list[Check]) -> dict[str, Status]:
    return {check.name: check.status for check in checks}


def test_groups_of_version_2_hold_everything() -> None:
    checks = limits.judge(replace(BARE, hierarchies=V2))
    assert statuses(checks) == {"limits": Status.OK, "cpu limit": Status.OK, "freezer": Status.OK}
    assert not any(check.means or check.fix for check in checks)
    assert checks[0].found == "memory and processes by cgroup v2, writable at /g"


def test_what_is_missing_is_named_with_what_it_weakens() -> None:
    checks = limits.judge(BARE)
    assert set(statuses(checks).values()) == {Status.WEAK}
    memory, cpu, freezer = checks
    assert "per process" in memory.means and "`cpus`" in cpu.means and "SIGSTOP" in freezer.means
    half = limits.judge(replace(BARE, hierarchies=Hierarchies(1, memory="/m/x", pids="/p/x")))
    assert statuses(half) == {"limits": Status.OK, "cpu limit": Status.WEAK, "freezer": Status.WEAK}


@pytest.mark.parametrize(
    ("facts", "fix"),
    [
        (BARE, "`echo '+memory +pids +cpu' > /sys/fs/cgroup/cgroup.subtree_control`"),
        (replace(BARE, systemd=True), "`systemd-run --scope -p Delegate=yes agentrl launch FILE`"),
        (replace(BARE, systemd=True, root=False), "`systemd-run --user --scope -p Delegate=yes agentrl launch FILE`"),
        (replace(BARE, container=True), "start the container with `--privileged --cgroupns=private`"),
        (replace(BARE, v2_mount=None), "boot with `systemd.unified_cgroup_hierarchy=1` on the kernel's command line"),
        (
            replace(BARE, v2_controllers=frozenset()),
            "boot with `systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all`: cgroup v1 holds the controllers",
        ),
        (replace(BARE, root=False), "run as root, or have root give you a delegated cgroup"),
    ],
)
def test_the_fix_fits_the_machine(facts: limits.Facts, fix: str) -> None:
    assert {check.fix for check in limits.judge(facts)} == {fix}


def test_what_no_launch_can_do_without_fails() -> None:
    fatal = [
        sandboxes.judge_bubblewrap(None, ""),
        sandboxes.judge_filter(supported=False, machine="riscv64"),
        machine.judge_python("3.11.2", None),
        machine.judge_disk(Path("/runs"), writable=False, free_gib=100),
    ]
    assert {check.status for check in fatal} == {Status.FAILS}
    assert all(check.means and check.fix for check in fatal)
    assert not any(can_launch([check]) for check in fatal)


def test_what_only_costs_something_is_weak() -> None:
    weak = [
        sandboxes.judge_overlay("no such device", kernel=(6, 1), known=False),
        sandboxes.judge_overlay("not permitted", kernel=(5, 4), known=True),
        sandboxes.judge_overlay("not permitted", kernel=(6, 1), known=True),
        sandboxes.judge_ids(ranged=False, standing=Standing.ROOT, root=True, helper=True, user="root"),
        sandboxes.judge_ids(ranged=False, standing=Standing.SINGLE, root=False, helper=True, user="ann"),
        sandboxes.judge_ids(ranged=False, standing=Standing.SINGLE, root=False, helper=False, user="ann"),
        machine.judge_disk(Path("/runs"), writable=True, free_gib=0.5),
        machine.judge_files(256),
        machine.judge_git(None),
    ]
    assert {check.status for check in weak} == {Status.WEAK}
    assert all(check.means and check.fix for check in weak)
    assert [check.fix for check in weak[:3]] == [
        "`modprobe overlay`",
        "use Linux 5.12 or newer",
        "run as root, or in a container with `--cap-add SYS_ADMIN --security-opt apparmor=unconfined`",
    ]
    delegate = "`sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 ann`"
    assert (weak[4].fix, weak[5].fix) == (delegate, f"`apt-get install uidmap` and {delegate}")
    assert can_launch(weak)


def test_what_is_there_is_ok() -> None:
    fine = [
        sandboxes.judge_bubblewrap("/usr/bin/bwrap", "0.8.0"),
        sandboxes.judge_filter(supported=True, machine="x86_64"),
        sandboxes.judge_overlay(None, kernel=(6, 1), known=True),
        sandboxes.judge_ids(ranged=True, standing=Standing.ROOT, root=True, helper=True, user="root"),
        sandboxes.judge_ids(ranged=True, standing=Standing.SUBUID, root=False, helper=True, user="ann"),
        machine.judge_python("3.11.2", "2.10"),
        machine.judge_disk(Path("/runs"), writable=True, free_gib=100),
        machine.judge_files(resource.RLIM_INFINITY),
        machine.judge_git("git version 2.39"),
        machine.judge_gpus(["GPU 0: NVIDIA X (UUID: GPU-1)"]),
    ]
    assert {check.status for check in fine} == {Status.OK}
    assert not any(check.means or check.fix for check in fine)
    assert fine[-1].found == "GPU 0: NVIDIA X"


def doctor(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    monkeypatch.setattr("sys.argv", ["agentrl", "doctor", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0), capsys.readouterr().out


def groups() -> set[Path]:
    return set(Path("/sys/fs/cgroup").rglob("agentrl-doctor-*"))


def test_this_machine_can_launch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out = doctor(["--json", "--runs-dir", str(tmp_path / "runs")], monkeypatch, capsys)
    said = json.loads(out)
    assert code == 0 and said["ready"] is True
    assert {check["name"] for check in said["checks"]} >= {
        *("bubblewrap", "namespaces", "user ids", "seccomp", "overlay", "limits", "cpu limit", "freezer"),
        *("python", "disk", "git", "gpus"),
    }
    assert all(set(check) == {"name", "status", "found", "means", "fix"} for check in said["checks"])
    assert groups() == set() and not (tmp_path / "runs").exists()


def test_a_machine_without_bubblewrap_cannot(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code, out = doctor([], monkeypatch, capsys)
    assert code == 1
    assert "apt-get install bubblewrap" in out and out.endswith("no launch can work here: see what fails\n")
    assert "namespaces" not in out, "nothing is said of what could not be tried"
