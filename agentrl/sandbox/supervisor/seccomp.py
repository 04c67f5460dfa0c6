"""The system call filter of sandboxes: a BPF program for seccomp(2), assembled here. Pure, but for `install`.

It refuses what a sandboxed program has no business with and what kernels were broken through: mounting, namespaces,
tracing and reading other processes, key rings, bpf, io_uring, kexec, modules, and sockets that leave the network
namespace (vsock does). The answers are those of container runtimes: EPERM where a right is missing; ENOSYS where
programs know how to go on without, as C libraries do without clone3, whose flags a filter cannot read. Numbers that
were given out after this list was made do not exist inside.

Sources: seccomp(2); the kernel's syscall tables (arch/x86/entry/syscalls/syscall_64.tbl, asm-generic/unistd.h); the
default profile of Docker (moby/profiles/seccomp) for what may be refused without breaking programs.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform
import struct
from dataclasses import dataclass
from pathlib import Path

from agentrl.sandbox.supervisor import syscalls

_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NR, _ARCH, _ARG0, _ARG1 = 0, 4, 16, 24
"""Offsets in struct seccomp_data; of an argument, its low 32 bits on a little-endian machine."""
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06

_LAST_KNOWN = 469
"""file_setattr, Linux 6.17."""
_NEW_NAMESPACE = syscalls.SANDBOX_NAMESPACES
_CLONE_NEWTIME = 0x80
"""For unshare; in clone these bits are the exit signal."""
_SOCKET_FAMILIES = (1, 2, 10, 16)
"""unix, IPv4, IPv6, netlink: all that a namespace with only `lo` can use."""
_TERMINAL_INJECTION = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX type into somebody's terminal."""

_COMMON_DENIED = {
    **{"open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433},
    **{"pidfd_getfd": 438, "mount_setattr": 442, "quotactl_fd": 443, "open_tree_attr": 467},
}
_COMMON_MISSING = {"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "clone3": 435}


@dataclass(frozen=True)
class Arch:
    """Numbers of one architecture."""

    audit: int
    """AUDIT_ARCH_*: which table a call's number belongs to."""
    denied: dict[str, int]
    """Calls that fail with EPERM."""
    missing: dict[str, int]
    """Calls that fail with ENOSYS."""
    clone: int
    unshare: int
    socket: int
    ioctl: int


ARCHES = {
    "x86_64": Arch(
        audit=0xC000003E,
        denied={
            **{"ptrace": 101, "syslog": 103, "uselib": 134, "modify_ldt": 154, "pivot_root": 155, "acct": 163},
            **{"settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169},
            **{"sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173, "init_module": 175},
            **{"delete_module": 176, "quotactl": 179, "lookup_dcookie": 212, "clock_settime": 227, "kexec_load": 246},
            **{"add_key": 248, "request_key": 249, "keyctl": 250, "move_pages": 279, "perf_event_open": 298},
            **{"fanotify_init": 300, "open_by_handle_at": 304, "setns": 308, "process_vm_readv": 310},
            **{"process_vm_writev": 311, "kcmp": 312, "finit_module": 313, "kexec_file_load": 320, "bpf": 321},
            **{"userfaultfd": 323, **_COMMON_DENIED},
        },
        missing={**{"_sysctl": 156, "create_module": 174, "query_module": 178, "nfsservctl": 180}, **_COMMON_MISSING},
        clone=56,
        unshare=272,
        socket=41,
        ioctl=16,
    ),
    "aarch64": Arch(
        audit=0xC00000B7,
        denied={
            **{"lookup_dcookie": 18, "umount2": 39, "mount": 40, "pivot_root": 41, "quotactl": 60, "acct": 89},
            **{"kexec_load": 104, "init_module": 105, "delete_module": 106, "clock_settime": 112, "syslog": 116},
            **{"ptrace": 117, "reboot": 142, "sethostname": 161, "setdomainname": 162, "settimeofday": 170},
            **{"add_key": 217, "request_key": 218, "keyctl": 219, "swapon": 224, "swapoff": 225, "move_pages": 239},
            **{"perf_event_open": 241, "fanotify_init": 262, "open_by_handle_at": 265, "setns": 268},
            **{"process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "bpf": 280},
            **{"userfaultfd": 282, "kexec_file_load": 294, **_COMMON_DENIED},
        },
        missing={"nfsservctl": 42, **_COMMON_MISSING},
        clone=220,
        unshare=97,
        socket=198,
        ioctl=29,
    ),
}
"""By platform.machine()."""


def supported() -> bool:
    """Whether there is a filter for this machine, and its kernel can apply one."""
    return platform.machine() in ARCHES and Path("/proc/sys/kernel/seccomp/actions_avail").exists()


@functools.cache
def program(machine: str | None = None) -> bytes:
    """The filter as an array of struct sock_filter, for the machine this runs on unless `machine` names another.

    A call in another architecture's table (32-bit x86) ends the process with SIGSYS: its numbers mean other calls.
    Raises KeyError for a machine without a table.
    """
    arch = ARCHES[machine or platform.machine()]
    code = [
        _op(_LOAD, _ARCH),
        *_unless(_JUMP_EQUAL, arch.audit, _KILL_PROCESS),
        _op(_LOAD, _NR),
        *_when(_JUMP_AT_LEAST, _LAST_KNOWN + 1, _fail(errno.ENOSYS)),  # those of x32 too: they carry bit 30
    ]
    for number in sorted(arch.denied.values()):
        code += _when(_JUMP_EQUAL, number, _fail(errno.EPERM))
    for number in sorted(arch.missing.values()):
        code += _when(_JUMP_EQUAL, number, _fail(errno.ENOSYS))
    code += _on_argument(arch.clone, _ARG0, _when(_JUMP_ANY_BIT, _NEW_NAMESPACE, _fail(errno.EPERM)))
    in_unshare = _when(_JUMP_ANY_BIT, _NEW_NAMESPACE | _CLONE_NEWTIME, _fail(errno.EPERM))
    code += _on_argument(arch.unshare, _ARG0, in_unshare)
    in_ioctl = b"".join(b"".join(_when(_JUMP_EQUAL, kind, _fail(errno.EPERM))) for kind in _TERMINAL_INJECTION)
    code += _on_argument(arch.ioctl, _ARG1, [in_ioctl])
    families = [b"".join(_when(_JUMP_EQUAL, family, _ALLOW)) for family in _SOCKET_FAMILIES]
    code += _on_argument(arch.socket, _ARG0, [*families, _op(_RETURN, _fail(errno.EAFNOSUPPORT))])
    return b"".join([*code, _op(_RETURN, _ALLOW)])


def install(filter_program: bytes) -> None:
    """Put this process, and all that it will start, behind a filter. Irreversible.

    The process must have given up new privileges. Raises OSError.
    """
    instructions = ctypes.create_string_buffer(filter_program, len(filter_program))
    syscalls.set_filter(len(filter_program) // _INSTRUCTION.size, ctypes.addressof(instructions))


_INSTRUCTION = struct.Struct("=HBBI")
"""struct sock_filter: code, jump if true, jump if false, operand."""


def _op(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return _INSTRUCTION.pack(code, if_true, if_false, operand)


def _when(test: int, operand: int, result: int) -> list[bytes]:
    """Return `result` if the test holds, else go on."""
    return [_op(test, operand, 0, 1), _op(_RETURN, result)]


def _unless(test: int, operand: int, result: int) -> list[bytes]:
    return [_op(test, operand, 1, 0), _op(_RETURN, result)]


def _on_argument(number: int, argument: int, body: list[bytes]) -> list[bytes]:
    """For one call, load an argument and run `body`; allow what it lets through."""
    inner = b"".join([_op(_LOAD, argument), *body, _op(_RETURN, _ALLOW)])
    return [_op(_JUMP_EQUAL, number, 0, len(inner) // _INSTRUCTION.size), inner]


def _fail(number: int) -> int:
    return _ERRNO | number


def program_fd(filter_program: bytes) -> int:
    """A descriptor that reads as `filter_program`, for bwrap's --seccomp. The caller closes it."""
    fd = os.memfd_create("seccomp")
    os.write(fd, filter_program)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
