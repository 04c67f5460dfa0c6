"""The first process of a sandbox: a program of a few system calls, made here as an ELF file without a compiler.

It ignores SIGCHLD, so that the kernel reaps the orphans that it adopts, says that it runs, closes what it was given,
and waits for ever. As pid 1 it cannot be killed from inside. A shell that becomes `sleep` does the same, but loads
three programs and their libraries for that: it costs a third as much as all of bwrap, and is for other machines only.

Formats: elf(5); Intel 64 manual volume 2 and Arm A64 instruction set, of which it needs a load, a system call, a jump.
"""

from __future__ import annotations

import fcntl
import functools
import os
import platform
import struct
from dataclasses import dataclass

UP = b"up\n"
"""What it writes to its stdout when it runs."""
NAME = "first"
"""Its name in /proc/1/comm."""
_BASE = 0x400000
_HEADER_BYTES = 0x78
_ELF = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_IGNORE_CHILDREN = struct.pack("<QQQQ", 1, 0, 0, 0)
"""struct sigaction of the kernel with SIG_IGN."""
_SIGCHLD, _SET_NAME, _ALL_FDS = 17, 15, 0xFFFFFFFF
_MFD_EXEC = 0x10
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_BY_SHELL = "echo up; exec env --ignore-signal=CHLD sleep infinity </dev/null >/dev/null 2>&1"


@dataclass(frozen=True)
class _Machine:
    """Numbers of one architecture."""

    elf: int
    """e_machine."""
    sigaction: int
    prctl: int
    write: int
    wait: int
    """pause, or ppoll with nothing to wait for."""


_MACHINES = {
    "x86_64": _Machine(elf=62, sigaction=13, prctl=157, write=1, wait=34),
    "aarch64": _Machine(elf=183, sigaction=134, prctl=167, write=64, wait=73),
}
_CLOSE_RANGE = 436


def command(fd_inside: int) -> list[str]:
    """Its command line, for a sandbox that has `program_fd` as that descriptor."""
    return ["/bin/sh", "-c", _BY_SHELL] if program_fd() is None else [f"/proc/self/fd/{fd_inside}"]


@functools.cache
def program_fd() -> int | None:
    """A descriptor of the program, which nobody can change; None where it cannot be one."""
    machine = platform.machine()
    if machine not in _MACHINES:
        return None
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        try:
            fd = os.memfd_create(NAME, flags | _MFD_EXEC)
        except OSError:  # before Linux 6.3 all of them could be run
            fd = os.memfd_create(NAME, flags)
    except OSError:  # vm.memfd_noexec=2
        return None
    os.write(fd, program(machine))
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    return fd


def program(machine: str) -> bytes:
    """The ELF file. Raises KeyError for an architecture that it is not made for."""
    numbers, name = _MACHINES[machine], NAME.encode() + b"\0"
    call, repeat = (_x86_call, _x86_repeat) if machine == "x86_64" else (_arm_call, _arm_repeat)
    action = _BASE + _HEADER_BYTES
    text, title = action + len(_IGNORE_CHILDREN), action + len(_IGNORE_CHILDREN) + len(UP)
    data = _IGNORE_CHILDREN + UP + name
    data += bytes(-len(data) % 8)  # instructions must be aligned
    code = call(numbers.sigaction, _SIGCHLD, action, 0, 8)
    code += call(numbers.prctl, _SET_NAME, title)
    code += call(numbers.write, 1, text, len(UP))
    code += call(_CLOSE_RANGE, 0, _ALL_FDS, 0)
    code += repeat(call(numbers.wait, 0, 0, 0, 0))
    size, entry = _HEADER_BYTES + len(data) + len(code), action + len(data)
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header = _ELF.pack(ident, 2, numbers.elf, 1, entry, _ELF.size, 0, 0, _ELF.size, _SEGMENT.size, 1, 0, 0, 0)
    return header + _SEGMENT.pack(1, 5, 0, _BASE, _BASE, size, size, 0x1000) + data + code


def _x86_call(number: int, *arguments: int) -> bytes:
    """`mov` to eax, edi, esi, edx, r10d; `syscall`."""
    registers = (b"\xb8", b"\xbf", b"\xbe", b"\xba", b"\x41\xba")
    loads = zip(registers, (number, *arguments), strict=False)
    return b"".join(register + struct.pack("<I", value) for register, value in loads) + b"\x0f\x05"


def _x86_repeat(code: bytes) -> bytes:
    return code + struct.pack("<Bb", 0xEB, -len(code) - 2)


def _arm_call(number: int, *arguments: int) -> bytes:
    """`movz` and `movk` to x8, x0, x1, x2, x3; `svc`."""
    words = []
    for register, value in zip((8, 0, 1, 2, 3), (number, *arguments), strict=False):
        words += [0xD2800000 | (value & 0xFFFF) << 5 | register, 0xF2A00000 | value >> 16 << 5 | register]
    return struct.pack(f"<{len(words) + 1}I", *words, 0xD4000001)


def _arm_repeat(code: bytes) -> bytes:
    return code + struct.pack("<I", 0x14000000 | (-len(code) // 4) & 0x03FFFFFF)
