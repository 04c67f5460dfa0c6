"""Limits of single commands, in a sandbox that allows more."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentrl.sandbox.provider import CommandLimits, Sandbox
from tests.fixtures.sandboxes import SMALL, SPEC, bubblewrap


@pytest.fixture(params=["full", "rlimits"])
async def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sandbox]:
    async with bubblewrap(tmp_path / "state", mode=request.param) as provider:
        yield await provider.create(SPEC)


async def test_cpu_time_ends_a_process_with_its_own_signal(tmp_path: Path) -> None:
    async with bubblewrap(tmp_path / "state") as provider:
        await burn(await provider.create(SPEC))


async def burn(sandbox: Sandbox) -> None:
    busy = ["perl", "-e", "1 while 1"]
    result = await sandbox.exec(busy, timeout_s=60, limits=CommandLimits(cpu_s=1))
    assert (result.signal, result.exit_code, result.timed_out, result.oom) == (signal.SIGXCPU, None, False, False)
    stubborn = ["perl", "-e", "$SIG{XCPU} = q(IGNORE); 1 while 1"]
    assert (await sandbox.exec(stubborn, timeout_s=60, limits=CommandLimits(cpu_s=1))).signal == signal.SIGKILL


async def test_memory_and_files_are_limited(sandbox: Sandbox) -> None:
    hungry = ["perl", "-e", "my $x = q(x) x 40_000_000; print length $x"]
    assert (await sandbox.exec(hungry, timeout_s=60)).stdout == b"40000000"
    result = await sandbox.exec(hungry, timeout_s=60, limits=CommandLimits(memory_mb=32))
    assert result.exit_code not in (0, None) and not result.oom
    write = ["head", "-c", "3000000", "/dev/zero"]
    assert (await sandbox.exec(["sh", "-c", "exec head -c 3M /dev/zero > f"], timeout_s=20)).exit_code == 0
    limited = await sandbox.exec(
        ["sh", "-c", "exec head -c 3M /dev/zero > f"], timeout_s=20, limits=CommandLimits(file_mb=1)
    )
    assert limited.signal == signal.SIGXFSZ and limited.exit_code is None
    assert (await sandbox.exec(write, timeout_s=20, limits=CommandLimits(file_mb=1))).bytes_total == 3_000_000


@pytest.mark.parametrize("mode", ["full", "rlimits"])
async def test_processes_are_limited(tmp_path: Path, mode: str) -> None:
    """Where the sandbox's only user is the host's root, the kernel exempts it: see docs/sandboxes.md."""
    many = "for i in $(seq 20); do sleep 640 & done"
    async with bubblewrap(tmp_path / "state", mode=mode) as provider:
        sandbox = await provider.create(SPEC)
        result = await sandbox.exec(["sh", "-c", many], timeout_s=60, limits=CommandLimits(pids=8))
        assert b"fork" in result.stderr
        assert 0 < result.leftover_processes < 8


async def test_limits_of_a_command_do_not_reach_the_next(sandbox: Sandbox) -> None:
    await sandbox.exec("true", timeout_s=20, limits=CommandLimits(cpu_s=1, memory_mb=64, pids=9, file_mb=1))
    other = await sandbox.exec("ulimit -t; ulimit -f", timeout_s=20)
    assert other.stdout == b"unlimited\nunlimited\n"


async def test_more_than_there_is_changes_nothing(sandbox: Sandbox) -> None:
    huge = CommandLimits(cpu_s=2**40, memory_mb=2**30, pids=2**30, file_mb=2**30)
    result = await sandbox.exec("echo ran; exit 3", timeout_s=20, limits=huge)
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"ran\n", b"")
    assert SMALL.pids == 48, "of all processes of the sandbox together, which is what holds then"


async def test_a_session_holds_them_for_each_command(sandbox: Sandbox) -> None:
    session = sandbox.session(limits=CommandLimits(cpu_s=1))
    assert (await session.exec("x=1; ulimit -t", timeout_s=20)).stdout == b"1\n"
    assert (await session.exec("ulimit -t; echo $x", timeout_s=20)).stdout == b"1\n1\n"
