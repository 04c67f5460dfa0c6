"""The system call filter, run by a small interpreter of BPF: also for other architectures."""

from __future__ import annotations

import errno
import struct
from functools import cache

import pytest

from agentrl.sandbox.supervisor.seccomp import ARCHES, program

ALLOWED, KILLED = "allowed", "killed"
_ACTIONS = {0x7FFF0000: ALLOWED, 0x80000000: KILLED}


@cache
def instructions(machine: str) -> list[tuple[int, ...]]:
    return list(struct.iter_unpack("=HBBI", program(machine)))


def verdict(machine: str, number: int, *arguments: int, audit: int | None = None) -> str:
    """What the filter of `machine` says to a call: allowed, killed, or the name of its errno."""
    values = (*arguments, *(0,) * (6 - len(arguments)))
    data = struct.pack("<IIQ6Q", number, audit or ARCHES[machine].audit, 0, *values)
    accumulator = position = 0
    while True:
        operation, if_true, if_false, operand = instructions(machine)[position]
        position += 1
        if operation == 0x20:
            accumulator = struct.unpack_from("<I", data, operand)[0]
        elif operation == 0x06:
            return _ACTIONS.get(operand) or errno.errorcode[operand & 0xFFFF]
        else:
            tests = {0x15: accumulator == operand, 0x35: accumulator >= operand, 0x45: bool(accumulator & operand)}
            position += if_true if tests[operation] else if_false


@pytest.mark.parametrize("machine", ARCHES)
def test_named_calls_are_refused_and_others_pass(machine: str) -> None:
    arch = ARCHES[machine]
    assert {name: verdict(machine, number) for name, number in arch.denied.items()} == dict.fromkeys(
        arch.denied, "EPERM"
    )
    assert {name: verdict(machine, number) for name, number in arch.missing.items()} == dict.fromkeys(
        arch.missing, "ENOSYS"
    )
    refused = {*arch.denied.values(), *arch.missing.values(), arch.socket}
    others = [number for number in range(470) if number not in refused]
    assert {verdict(machine, number) for number in others} == {ALLOWED}


@pytest.mark.parametrize("machine", ARCHES)
def test_the_calls_that_broke_sandboxes_are_named(machine: str) -> None:
    named = {*ARCHES[machine].denied, *ARCHES[machine].missing}
    assert {
        *("mount", "umount2", "pivot_root", "move_mount", "open_tree", "fsopen", "fsmount", "mount_setattr", "setns"),
        *("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp", "keyctl", "add_key", "request_key"),
        *("bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register"),
        *("kexec_load", "kexec_file_load", "init_module", "finit_module", "open_by_handle_at", "clone3"),
    } <= named


@pytest.mark.parametrize("machine", ARCHES)
def test_new_namespaces_are_refused_and_plain_processes_and_threads_are_not(machine: str) -> None:
    arch = ARCHES[machine]
    for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert verdict(machine, arch.clone, flag | 17) == "EPERM"
        assert verdict(machine, arch.unshare, flag) == "EPERM"
    fork, thread, vfork = 0x01200011, 0x003D0F00, 0x4111
    assert [verdict(machine, arch.clone, flags) for flags in (fork, thread, vfork)] == [ALLOWED] * 3
    assert verdict(machine, arch.unshare, 0x400) == ALLOWED, "CLONE_FILES takes nothing from the jailer"


@pytest.mark.parametrize("machine", ARCHES)
def test_sockets_stay_in_the_network_namespace(machine: str) -> None:
    families = {"unix": 1, "inet": 2, "inet6": 10, "netlink": 16}
    number = ARCHES[machine].socket
    assert {verdict(machine, number, family) for family in families.values()} == {ALLOWED}
    assert {verdict(machine, number, family) for family in range(64) if family not in families.values()} == {
        "EAFNOSUPPORT"
    }


@pytest.mark.parametrize("machine", ARCHES)
def test_nobody_types_into_a_terminal(machine: str) -> None:
    number = ARCHES[machine].ioctl
    assert verdict(machine, number, 0, 0x5412) == verdict(machine, number, 0, 0x541C) == "EPERM"
    assert verdict(machine, number, 0, 0x5412 | 1 << 32) == "EPERM", "the kernel reads 32 bits of the request"
    assert verdict(machine, number, 0, 0x5413) == ALLOWED


def test_other_tables_and_unknown_numbers_do_not_exist() -> None:
    i386, x32_getpid = 0x40000003, 0x40000027
    assert verdict("x86_64", 20, audit=i386) == KILLED
    assert verdict("x86_64", x32_getpid) == "ENOSYS"
    assert verdict("aarch64", 20, audit=0x40000028) == KILLED
    assert {verdict("x86_64", number) for number in (470, 512, 547, 0xFFFFFFFF)} == {"ENOSYS"}


def test_jumps_stay_in_the_program() -> None:
    for machine in ARCHES:
        code = instructions(machine)
        assert len(code) <= 4096, "the kernel's limit"
        for position, (operation, if_true, if_false, _) in enumerate(code):
            if operation & 7 == 5:
                assert position + 1 + max(if_true, if_false) < len(code)
        assert code[-1][0] == 0x06, "it ends by answering"
