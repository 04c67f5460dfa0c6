"""The program that is every sandbox's first process, made without a compiler."""

from __future__ import annotations

import os
import platform
import signal
import struct
import subprocess
from pathlib import Path

import pytest

from agentrl.sandbox.supervisor import first_process

on_this_machine = pytest.mark.skipif(first_process.program_fd() is None, reason="no program for this machine")


@on_this_machine
def test_it_says_that_it_runs_closes_everything_and_ignores_its_children() -> None:
    fd = first_process.program_fd()
    assert fd is not None
    process = subprocess.Popen(first_process.command(fd), stdout=subprocess.PIPE, pass_fds=[fd])
    try:
        assert process.stdout is not None
        assert process.stdout.read() == first_process.UP, "the end of its output is that it was closed"
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
        assert list(Path(f"/proc/{process.pid}/fd").iterdir()) == []
        assert status["Name"] == first_process.NAME
        assert int(status["SigIgn"], 16) & 1 << (signal.SIGCHLD - 1)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL


@on_this_machine
def test_nobody_can_change_it() -> None:
    fd = first_process.program_fd()
    assert fd is not None
    with pytest.raises(PermissionError):
        os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_TRUNC)
    with pytest.raises(PermissionError):
        os.pwrite(fd, b"x", 0)


def test_other_machines_get_a_shell_that_becomes_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    first_process.program_fd.cache_clear()
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    try:
        assert first_process.command(6)[0] == "/bin/sh"
    finally:
        first_process.program_fd.cache_clear()


def test_the_arm_program_makes_the_calls_of_its_table() -> None:
    program = first_process.program("aarch64")
    entry = struct.unpack_from("<Q", program, 24)[0] - 0x400000
    words = [word for (word,) in struct.iter_unpack("<I", program[entry:])]
    calls, registers = [], {}
    for word in words[:-1]:
        if word == 0xD4000001:
            calls.append((registers[8], [registers.get(number) for number in range(3)]))
            registers = {}
        elif word >> 21 == 0xD2800000 >> 21:
            registers[word & 31] = word >> 5 & 0xFFFF
        else:
            assert word >> 21 == 0xF2A00000 >> 21, "movk, lsl 16"
            registers[word & 31] |= (word >> 5 & 0xFFFF) << 16
    assert [number for number, _ in calls] == [134, 167, 64, 436, 73], "rt_sigaction, prctl, write, close_range, ppoll"
    text = calls[2][1][1] - 0x400000
    assert program[text : text + 3] == first_process.UP
    assert calls[3][1] == [0, 0xFFFFFFFF, 0]
    back = (words[-1] & 0x03FFFFFF) - (1 << 26)
    assert words[-1] >> 26 == 5 and words[-2 + back] == 0xD4000001, "b, to what follows the last but one call"
