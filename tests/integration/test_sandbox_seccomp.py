"""The system call filter in the kernel that runs here: what a command tries is refused, and ordinary programs work."""

from __future__ import annotations

import errno
import platform
import signal
import struct
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.errors import UserError
from agentrl.sandbox.bubblewrap import BubblewrapProvider
from agentrl.sandbox.provider import Sandbox
from agentrl.sandbox.supervisor.seccomp import ARCHES
from tests.fixtures.sandboxes import MODES, SMALL, SPEC, bubblewrap, host

ARCH = ARCHES[platform.machine()]
CALLS = {**ARCH.denied, **ARCH.missing}


@pytest.fixture(params=MODES)
async def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sandbox]:
    async with bubblewrap(tmp_path / "state", mode=request.param) as provider:
        yield await provider.create(SPEC)


async def errnos(sandbox: Sandbox, calls: list[tuple[int, ...]]) -> list[int]:
    """errno of each call (number, arguments...), 0 for one that succeeds."""
    tries = "; ".join(f"$! = 0; syscall({', '.join(map(str, call))}); print $!+0, qq(\\n)" for call in calls)
    result = await sandbox.exec(["perl", "-e", tries], timeout_s=30)
    assert result.exit_code == 0, result.stderr
    return [int(line) for line in result.stdout.split()]


async def test_every_refused_call_is_refused(sandbox: Sandbox) -> None:
    seen = dict(zip(CALLS, await errnos(sandbox, [(number, *(0,) * 6) for number in CALLS.values()]), strict=True))
    expected = {**dict.fromkeys(ARCH.denied, errno.EPERM), **dict.fromkeys(ARCH.missing, errno.ENOSYS)}
    assert seen == expected


async def test_arguments_decide_where_a_call_is_also_needed(sandbox: Sandbox) -> None:
    new_user, plain, vsock, tiocsti = 0x10000000, 0x400, 40, 0x5412
    calls: list[tuple[int, ...]] = [
        (ARCH.unshare, new_user),
        (ARCH.unshare, plain),
        (ARCH.clone, new_user | 17, 0, 0, 0, 0),
        (ARCH.socket, vsock, 1, 0),
        (ARCH.socket, 38, 5, 0),
        (ARCH.socket, 2, 1, 0),
        (ARCH.ioctl, 0, tiocsti, 0),
        (0x3FFF, 0),
    ]
    assert await errnos(sandbox, calls) == [
        *(errno.EPERM, 0, errno.EPERM, errno.EAFNOSUPPORT, errno.EAFNOSUPPORT, 0, errno.EPERM, errno.ENOSYS),
    ]


async def test_every_process_is_behind_the_filter(sandbox: Sandbox) -> None:
    """Also the first process, which bwrap started, and those that commands leave behind."""
    await sandbox.exec("setsid -f sleep 620 >/dev/null 2>&1", timeout_s=20)
    modes = await sandbox.exec("grep -h ^Seccomp: /proc/[0-9]*/status /proc/self/status", timeout_s=20)
    lines = modes.stdout.decode().split("\n")[:-1]
    assert len(lines) >= 4 and set(lines) == {"Seccomp:\t2"}


async def test_shells_pipes_threads_and_sockets_work(sandbox: Sandbox) -> None:
    script = (
        "echo a b | tr ' ' '\\n' | sort -r | head -1; perl -e 'use Socket; socketpair(A, B, AF_UNIX, SOCK_STREAM, 0) "
        'or die; syswrite A, "x"; sysread B, $_, 1; print "$_\\n"\'; tar -cf - /etc/hosts 2>/dev/null | tar -tf -'
    )
    result = await sandbox.exec(script, timeout_s=30)
    assert (result.exit_code, result.stdout) == (0, b"b\nx\netc/hosts\n")


def elf64(code: bytes) -> bytes:
    """The smallest x86-64 program that runs `code`."""
    base, header = 0x400000, 64 + 56
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head = struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, base + header, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, header + len(code), header + len(code), 0x1000)
    return ident + head + segment + code


async def test_calls_of_32_bit_programs_end_the_process(sandbox: Sandbox) -> None:
    if platform.machine() != "x86_64":
        assert ARCH is ARCHES["aarch64"], "its 32-bit programs have an architecture of their own, as in the unit test"
        return
    exit_0_by_int_80 = b"\xb8\x01\x00\x00\x00\x31\xdb\xcd\x80\xf4"  # mov eax, 1; xor ebx, ebx; int 0x80; hlt
    await sandbox.write("/app/old", elf64(exit_0_by_int_80), mode=0o755)
    result = await sandbox.exec(["/app/old"], timeout_s=20)
    assert (result.exit_code, result.signal) in ((None, signal.SIGSYS), (None, signal.SIGSEGV))  # without emulation
    exit_0 = b"\xb8\x3c\x00\x00\x00\x31\xff\x0f\x05"  # mov eax, 60; xor edi, edi; syscall
    await sandbox.write("/app/new", elf64(exit_0), mode=0o755)
    assert (await sandbox.exec(["/app/new"], timeout_s=20)).exit_code == 0
    assert await errnos(sandbox, [(0x40000000 | 39,)]) == [errno.ENOSYS]  # getpid of x32


async def test_without_the_filter_a_command_may_trace_itself(tmp_path: Path) -> None:
    """The opt-out for debuggers; and that the filter, not something else, refuses above."""
    async with bubblewrap(tmp_path / "state", config=replace(SMALL, seccomp=False)) as provider:
        sandbox = await provider.create(SPEC)
        trace_me = (CALLS["ptrace"], 0, 0, 0, 0)
        assert await errnos(sandbox, [trace_me]) == [0]
        modes = await sandbox.exec("grep -h ^Seccomp: /proc/1/status /proc/self/status", timeout_s=20)
        assert modes.stdout.split()[1::2] != [b"2", b"2"]


def test_a_machine_without_a_filter_is_refused_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(UserError, match=r"riscv64.*sandbox\.seccomp=false"):
        BubblewrapProvider(SMALL, state_dir=tmp_path, host=host())
