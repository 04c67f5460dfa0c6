"""What a sandbox without isolation promises. Run by test_bare_sandboxes.py on a machine made for it: see there."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentrl.errors import ImageError, SandboxError, UserError
from agentrl.sandbox.bare.host import check_machine
from agentrl.sandbox.bare.provider import BareProvider
from agentrl.sandbox.bare.records import left_folders, reap
from agentrl.sandbox.config import Isolation, SandboxConfig
from agentrl.sandbox.death import Death
from agentrl.sandbox.provider import Copy, Image, SandboxSpec
from tests.contracts.sandbox import SANDBOX_CHECKS, SEVERAL_CHECKS, SNAPSHOT_CHECKS, SPEC, SandboxCheck
from tests.fixtures.sandboxes import is_there, records, until, until_there

CONFIG = SandboxConfig(isolation=Isolation.none, max_sandboxes=1, warm_max=0, start_timeout_s=10.0)
MADE = ("/tests", "/logs", "/solution", "/app")
OWNER = """
import asyncio, sys
from pathlib import Path
from agentrl.sandbox.bare.provider import BareProvider
from tests.contracts.bare_sandbox import CONFIG, SPEC

async def main():
    sandbox = await BareProvider(CONFIG, state_dir=Path(sys.argv[1])).create(SPEC)
    await sandbox.exec("setsid -f sleep 7001; setsid -f sleep 7002; echo x > /app/file", timeout_s=20)
    print(sandbox._link.pid, flush=True)
    await sandbox.exec("sleep 7003", timeout_s=900)

asyncio.run(main())
"""


def sleepers() -> list[str]:
    """Processes of the tests on this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0] == b"sleep" and re.match(rb"700\d", words[1]):
            found.append(words[1].decode())
    return sorted(found)


def there() -> list[str]:
    return [folder for folder in MADE if Path(folder).exists()]


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[BareProvider]:
    made = BareProvider(CONFIG, state_dir=tmp_path / "state")
    yield made
    await made.close()
    assert (there(), sleepers(), records(tmp_path / "state")) == ([], [], [])


LACKING = [*SNAPSHOT_CHECKS, *SEVERAL_CHECKS]


@pytest.mark.parametrize(
    "check", [check for check in SANDBOX_CHECKS if check not in LACKING], ids=lambda check: check.__name__
)
async def test_contract(check: SandboxCheck, provider: BareProvider) -> None:
    assert not provider.capabilities.snapshot
    assert not provider.capabilities.build
    await check(provider)


async def test_what_it_lacks_is_refused(provider: BareProvider, tmp_path: Path) -> None:
    sandbox = await provider.create(SPEC)
    assert provider.room == 0
    with pytest.raises(SandboxError, match="snapshots"):
        await sandbox.snapshot()
    with pytest.raises(UserError, match="user agent"):
        await sandbox.exec("true", user="agent", timeout_s=20)
    with pytest.raises(ImageError, match="user agent"):
        await provider.create(SandboxSpec(image=Image(workdir="/app", user="agent")))
    with pytest.raises(UserError, match="would remove /tests"):  # they are the first one's
        BareProvider(CONFIG, state_dir=tmp_path / "other")
    await provider.close()
    assert not await sandbox.probe()
    with pytest.raises(SandboxError, match="closed"):
        await provider.create(SPEC)


async def test_the_second_waits_for_the_first(provider: BareProvider) -> None:
    first = await provider.create(SPEC)
    second = asyncio.create_task(provider.create(SPEC))
    await first.write("/app/mine", b"secret")
    assert not second.done()
    await first.close()
    assert await (await second).read("/app/mine") is None


async def test_results_are_those_of_any_sandbox(provider: BareProvider) -> None:
    sandbox = await provider.create(SPEC)
    result = await sandbox.exec("echo out; echo err >&2; exit 3", timeout_s=20)
    assert (result.exit_code, result.signal, result.stdout, result.stderr) == (3, None, b"out\n", b"err\n")
    killed = await sandbox.exec("kill -9 $$", timeout_s=20)
    assert (killed.exit_code, killed.signal) == (None, signal.SIGKILL)
    missing = await sandbox.exec(["no-such-program"], timeout_s=20)
    assert missing.exit_code == 127
    capped = await sandbox.exec("head -c 1000000 /dev/zero", max_output_bytes=1000, timeout_s=20)
    assert (len(capped.stdout), capped.truncated, capped.bytes_total) == (1000, True, 1_000_000)
    held = await sandbox.exec("sleep 7004 & echo done", timeout_s=60)
    assert (held.exit_code, held.stdout, held.leftover_processes) == (0, b"done\n", 1)
    assert await sandbox.kill_all() == 1
    home = await sandbox.exec("echo $HOME; touch ~/x", timeout_s=20)
    assert home.stdout.strip().decode() not in ("/root", os.environ.get("HOME"))


async def test_a_timeout_kills_daemons_and_spares_those_of_earlier_commands(provider: BareProvider) -> None:
    sandbox = await provider.create(SPEC)
    await sandbox.exec("setsid -f env -i sleep 7005 >/dev/null 2>&1", timeout_s=20)
    result = await sandbox.exec("(setsid setsid env -i sleep 7006 &); setsid -f sleep 7007; sleep 7008", timeout_s=0.5)
    assert (result.exit_code, result.timed_out, result.leftover_processes) == (None, True, 0)
    assert sleepers() == ["7005"]


async def test_other_processes_of_the_machine_are_left_alone(provider: BareProvider) -> None:
    stranger = await asyncio.create_subprocess_exec("sleep", "60")
    sandbox = await provider.create(SPEC)
    await sandbox.exec("setsid -f sleep 7009", timeout_s=20)
    await sandbox.freeze()
    await sandbox.thaw()
    assert await sandbox.kill_all() == 1
    await sandbox.close()
    assert stranger.returncode is None
    stranger.kill()
    assert await stranger.wait() == -signal.SIGKILL


def ticking() -> set[str]:
    """States of the shells that write ticks, as in /proc/PID/stat: T is stopped."""
    states = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if b">> ticks" in (path / "cmdline").read_bytes():
                states.add((path / "stat").read_text().rpartition(")")[2].split()[0])
        except OSError:
            continue
    return states


async def test_freezing_stops_and_thawing_goes_on(provider: BareProvider) -> None:
    sandbox = await provider.create(SPEC)
    await sandbox.exec("setsid -f sh -c 'while :; do echo >> ticks; sleep 0.01; done' >/dev/null 2>&1", timeout_s=20)
    await until_there(sandbox, "/app/ticks")
    await sandbox.freeze()
    await until(lambda: asyncio.sleep(0, ticking() == {"T"}))
    frozen = await sandbox.read("/app/ticks")
    assert (ticking(), await sandbox.read("/app/ticks")) == ({"T"}, frozen)
    await sandbox.thaw()

    async def goes_on() -> bool:
        return await sandbox.read("/app/ticks") != frozen

    await until(goes_on)


async def test_a_lifetime_ends_it_and_says_so(tmp_path: Path) -> None:
    config = SandboxConfig(isolation=Isolation.none, max_sandboxes=1, warm_max=0, lifetime_s=0.5)
    provider = BareProvider(config, state_dir=tmp_path / "state")
    sandbox = await provider.create(SPEC)
    with pytest.raises(SandboxError, match="lifetime") as caught:
        await sandbox.exec("setsid -f sleep 7010; sleep 7011", timeout_s=60)
    assert caught.value.death is Death.EXPIRED
    await until(lambda: asyncio.sleep(0, not there() and not sleepers()))
    await provider.close()


async def test_images_bring_their_files_and_only_what_was_made_goes(provider: BareProvider, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("x")
    image = Image(workdir="/app", copies=(Copy(source=tmp_path / "data", target="/var/own/deep"),))
    sandbox = await provider.create(SandboxSpec(image=image))
    assert (await sandbox.exec("cat /var/own/deep/file; ls /logs", timeout_s=20)).stdout == (
        b"xagent\nartifacts\nverifier\n"
    )
    await sandbox.close()
    assert not is_there(Path("/var/own"))
    assert is_there(Path("/var"))


async def test_what_is_there_already_is_never_taken(provider: BareProvider, tmp_path: Path) -> None:
    for image in (Image(workdir="/"), Image(workdir="/usr/lib"), Image(workdir="/root")):
        with pytest.raises(ImageError, match="already"):
            await provider.create(SandboxSpec(image=image))
    (tmp_path / "file").write_text("x")
    onto = Image(workdir="/app", copies=(Copy(source=tmp_path / "file", target="/etc/hostname"),))
    with pytest.raises(ImageError, match="/etc"):
        await provider.create(SandboxSpec(image=onto))
    os.mkdir("/tests")  # noqa: PTH102
    try:
        with pytest.raises(UserError, match="/tests"):
            check_machine()
        with pytest.raises(ImageError, match="/tests"):
            await provider.create(SPEC)
    finally:
        os.rmdir("/tests")  # noqa: PTH106
    assert there() == []


async def owner(state: Path) -> tuple[asyncio.subprocess.Process, int]:
    """A process with a busy sandbox, and the pid of its door."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, str(state), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    door = int(await process.stdout.readline())
    await until(lambda: asyncio.sleep(0, "7003" in sleepers()))
    assert (sleepers(), there()) == (["7001", "7002", "7003"], list(MADE))
    return process, door


async def test_a_killed_owner_leaves_nothing(tmp_path: Path) -> None:
    process, _ = await owner(tmp_path)
    process.kill()
    await process.wait()
    await until(lambda: asyncio.sleep(0, not there() and not sleepers()))
    assert reap(tmp_path) == []
    assert records(tmp_path) == []


async def test_what_a_killed_owner_and_door_left_is_removed_by_the_next(tmp_path: Path) -> None:
    process, door = await owner(tmp_path)
    assert reap(tmp_path) == []
    assert there() == list(MADE)  # it lives
    os.kill(door, signal.SIGSTOP)
    process.kill()
    await process.wait()
    os.kill(door, signal.SIGKILL)
    await until(lambda: asyncio.sleep(0, "7003" not in sleepers()))
    assert sleepers() == ["7001", "7002"]
    assert left_folders(tmp_path) >= set(MADE)
    check_machine(left_folders(tmp_path))
    assert reap(tmp_path) == []
    assert (there(), sleepers(), records(tmp_path)) == ([], [], [])


async def test_a_door_that_the_model_killed_costs_the_sandbox_and_leaves_nothing(provider: BareProvider) -> None:
    sandbox = await provider.create(SPEC)
    with pytest.raises(SandboxError) as caught:
        await sandbox.exec("setsid -f sleep 7012; kill -9 $PPID; sleep 7013", timeout_s=60)
    assert caught.value.death is Death.UNREACHABLE
    await sandbox.close()
    assert (there(), sleepers()) == ([], [])
    assert await (await provider.create(SPEC)).probe()
