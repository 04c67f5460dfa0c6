"""Snapshots and forks of bubblewrap sandboxes, beyond what every provider promises."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentrl.errors import SandboxError
from agentrl.sandbox.bubblewrap import BubblewrapProvider
from agentrl.sandbox.provider import Sandbox, Snapshot
from tests.contracts.sandbox import SNAPSHOT_CHECKS, SandboxCheck
from tests.fixtures.sandboxes import SPEC, bubblewrap, host, read_record, records, until


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[BubblewrapProvider]:
    async with bubblewrap(tmp_path / "state") as made:
        yield made


@pytest.fixture
async def sandbox(provider: BubblewrapProvider) -> Sandbox:
    return await provider.create(SPEC)


async def output(sandbox: Sandbox, script: str) -> str:
    result = await sandbox.exec(script, timeout_s=60)
    return (result.stdout + result.stderr).decode(errors="replace")


async def fork(provider: BubblewrapProvider, snapshot: Snapshot) -> Sandbox:
    return await provider.create(SPEC, snapshot=snapshot)


def disks(state_dir: Path) -> list[str]:
    """Disks that the supervisor still has mounted."""
    (record,) = records(state_dir)
    lines = Path(f"/proc/{read_record(record)['supervisor']['pid']}/mountinfo").read_text().splitlines()
    return [line.split()[4] for line in lines if "/disks/" in line.split()[4]]


async def test_what_was_removed_replaced_and_given_away_is_so_in_the_fork(
    provider: BubblewrapProvider, sandbox: Sandbox
) -> None:
    assert host().ids.ranged, "as root the tests expect a range of ids"
    script = """
    rm -r /etc/alternatives; mkdir /etc/alternatives; echo new > /etc/alternatives/new; rm /etc/shells
    echo x > owned; chown 1000:7 owned; chmod 4750 owned; ln owned twin; ln -s /etc/hosts link; mkfifo pipe
    truncate -s 100G sparse; touch -d 2001-02-03 old
    """
    await sandbox.exec(script, timeout_s=20)
    forked = await fork(provider, await sandbox.snapshot())
    look = "ls /etc/alternatives; ls /etc/shells; stat -c '%n %u:%g %a %h' owned; stat -c %s sparse"
    seen = await output(forked, look)
    assert seen.splitlines() == [
        "new",
        "owned 1000:7 4750 2",
        "107374182400",
        "ls: cannot access '/etc/shells': No such file or directory",
    ]
    assert (await output(forked, "readlink link; test -p pipe && stat -c %y old")).startswith("/etc/hosts\n2001-02-03 ")


async def test_a_copy_beside_running_processes_is_as_good(provider: BubblewrapProvider, sandbox: Sandbox) -> None:
    script = """
    mkdir deep; echo x > deep/file; ln deep/file deep/twin; rm -r /home/agent; truncate -s 10M sparse; echo y >> sparse
    setsid -f sh -c 'exec 3> held; while :; do echo tick >&3; sleep 0.01; done' > /dev/null 2>&1
    """
    await sandbox.exec(script, timeout_s=20)

    async def held() -> bool:
        return bool(await sandbox.read("/app/held"))

    await until(held)
    snapshot = await sandbox.snapshot()
    assert snapshot.leftover_processes >= 1
    forked = await fork(provider, snapshot)
    then = await forked.read("/app/held")
    seen = await output(forked, "stat -c %h deep/file; stat -c '%s' sparse; tail -c 2 sparse; ls /home; pgrep -c sleep")
    assert seen.split() == ["2", "10485762", "y", "0"]

    async def goes_on() -> bool:
        return len(await sandbox.read("/app/held") or b"") > len(then or b"")

    await until(goes_on)
    assert await forked.read("/app/held") == then


async def test_more_snapshots_than_a_mount_takes_layers(provider: BubblewrapProvider, sandbox: Sandbox) -> None:
    for number in range(60):
        await sandbox.write(f"/app/{number}", b"x")
        if number % 2:
            script = f"rm {number - 1}; mkdir {number - 1}; rm -rf kept; mkdir kept; touch kept/{number}"
            await sandbox.exec(script, timeout_s=20)
        snapshot = await sandbox.snapshot()
        if number < 59:
            await snapshot.release()
    forked = await fork(provider, snapshot)
    for place in (sandbox, forked):
        assert await output(place, "find . -type f | wc -l; find . -type d | wc -l; ls kept") == "31\n32\n59\n"


async def test_a_full_disk_can_be_snapshotted_and_a_fork_has_space_of_its_own(
    provider: BubblewrapProvider, sandbox: Sandbox
) -> None:
    assert "No space left" in await output(sandbox, "head -c 100M /dev/zero > big")
    snapshot = await sandbox.snapshot()
    assert "No space left" in await output(sandbox, "head -c 1M /dev/zero > more"), "one disk, however many layers"
    forked = await fork(provider, snapshot)
    assert await output(forked, "head -c 1M /dev/zero > more; stat -c %s more") == "1048576\n"
    assert "No space left" in await output(forked, "head -c 100M /dev/zero > more")


async def test_grading_folders_stay_with_the_sandbox_and_are_empty_in_the_fork(
    provider: BubblewrapProvider, sandbox: Sandbox
) -> None:
    await sandbox.exec("echo x | tee /logs/agent/log /tests/x /dev/shm/x", timeout_s=20)
    forked = await fork(provider, await sandbox.snapshot())
    look = "cat /logs/agent/log; ls /tests /dev/shm; echo b > /proc/sysrq-trigger; touch /usr/x /dev/x; rm -d /tests"
    assert (await output(sandbox, look)).startswith("x\n/dev/shm:\nx\n\n/tests:\nx\n")
    assert "cannot remove '/tests'" in await output(sandbox, look), "still a mount"
    seen = await output(forked, look)
    assert "x\n" not in seen and "Read-only file system" in seen


async def test_space_is_freed_with_the_last_who_stands_on_it(
    provider: BubblewrapProvider, sandbox: Sandbox, tmp_path: Path
) -> None:
    first = await sandbox.snapshot()
    forked = await fork(provider, first)
    second = await forked.snapshot()
    await sandbox.close()
    await first.release()
    assert len(disks(tmp_path / "state")) == 2, "the fork's layers lie on both"
    await forked.close()
    third = await fork(provider, second)
    await second.release()
    assert len(disks(tmp_path / "state")) == 3
    await third.close()
    assert disks(tmp_path / "state") == []


async def test_snapshots_that_are_cancelled_or_overtaken_by_the_end_leave_nothing(
    provider: BubblewrapProvider, tmp_path: Path
) -> None:
    for delay_ms in range(0, 20, 2):
        cancelled, closed = [await provider.create(SPEC) for _ in range(2)]
        busy = asyncio.create_task(closed.exec("head -c 5M /dev/zero > big; sleep 60", timeout_s=60))
        asked = [asyncio.create_task(sandbox.snapshot()) for sandbox in (cancelled, closed)]
        await asyncio.wait(asked, timeout=delay_ms / 1000)
        asked[0].cancel()
        await closed.close()
        for made in await asyncio.gather(*asked, return_exceptions=True):
            if not isinstance(made, BaseException):
                await made.release()
        assert (await cancelled.exec("echo here", timeout_s=20)).stdout == b"here\n"
        await cancelled.close()
        await asyncio.gather(busy, return_exceptions=True)

    async def all_is_free() -> bool:
        return disks(tmp_path / "state") == []

    await until(all_is_free)


async def test_commands_files_and_freezes_wait_for_a_snapshot(provider: BubblewrapProvider, sandbox: Sandbox) -> None:
    taken = asyncio.create_task(sandbox.snapshot())
    after = [asyncio.create_task(sandbox.write(f"/app/{number}", b"x")) for number in range(20)]
    after += [asyncio.create_task(sandbox.exec(f"echo {number} >> log", timeout_s=20)) for number in range(5)]
    frozen = asyncio.create_task(sandbox.freeze())
    forked = await fork(provider, await taken)
    await frozen
    await sandbox.thaw()
    await asyncio.gather(*after)
    assert await output(sandbox, "ls | wc -l; wc -l < log") == "21\n5\n"
    assert await output(forked, "ls") == ""
    with pytest.raises(SandboxError, match="sealed already"):
        await asyncio.gather(*(sandbox.snapshot() for _ in range(2)))


async def test_a_snapshot_dies_with_its_supervisor(
    provider: BubblewrapProvider, sandbox: Sandbox, tmp_path: Path
) -> None:
    snapshot = await sandbox.snapshot()
    (record,) = records(tmp_path / "state")
    os.kill(read_record(record)["supervisor"]["pid"], signal.SIGKILL)
    with pytest.raises(SandboxError):
        await sandbox.exec("sleep 60", timeout_s=60)
    with pytest.raises(SandboxError, match="went with its supervisor"):
        await fork(provider, snapshot)
    await snapshot.release()
    assert await (await provider.create(SPEC)).probe()


async def test_mounts_tell_nothing_of_the_host_and_etc_cannot_be_replaced(
    provider: BubblewrapProvider, sandbox: Sandbox, tmp_path: Path
) -> None:
    forked = await fork(provider, await sandbox.snapshot())
    for place in (sandbox, forked):
        told = await output(place, "cat /proc/mounts /proc/self/mountinfo")
        assert str(tmp_path) not in told and "agentrl" not in told
        refused = (
            "mv /etc /was; mv /usr /was; echo /app/evil.so > /etc/ld.so.preload; rm /etc/ld.so.preload; ls -d /was"
        )
        assert (await output(place, refused)).count("\n") == 5 and "/was\n" not in await output(place, "ls -d /was")


async def test_without_an_overlay_it_is_said_why(tmp_path: Path) -> None:
    async with bubblewrap(tmp_path / "state", mode="no_overlay") as provider:
        assert not provider.capabilities.snapshot and not provider.capabilities.build
        sandbox = await provider.create(SPEC)
        with pytest.raises(SandboxError, match="no overlay"):
            await sandbox.snapshot()
        assert await sandbox.probe()
        assert "busy" in await output(sandbox, "mv /etc /was")


@pytest.mark.parametrize("mode", ["one_user", "rlimits"])
@pytest.mark.parametrize("check", SNAPSHOT_CHECKS, ids=lambda check: check.__name__)
async def test_what_every_provider_promises_holds_in_weaker_modes(
    tmp_path: Path, mode: str, check: SandboxCheck
) -> None:
    async with bubblewrap(tmp_path / "state", mode=mode) as provider:
        await check(provider)
