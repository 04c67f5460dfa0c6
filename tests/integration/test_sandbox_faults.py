"""What goes wrong around bubblewrap sandboxes: memory, deaths of any process, leftovers, hosts that cannot."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.errors import SandboxError, UserError
from agentrl.sandbox.bubblewrap import BubblewrapProvider, BubblewrapSandbox, check_host, reap
from agentrl.sandbox.provider import Copy, Image, SandboxSpec
from tests.fixtures.sandboxes import SMALL, SPEC, bubblewrap, cgroups_of, host, is_there, read_record, records, until


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[BubblewrapProvider]:
    async with bubblewrap(tmp_path / "state") as made:
        yield made


@pytest.fixture
async def sandbox(provider: BubblewrapProvider) -> BubblewrapSandbox:
    return await provider.create(SPEC)


def processes_like(text: str) -> list[int]:
    """Host pids whose command line holds `text`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if text in command and state not in "ZX":
            found.append(int(folder.name))
    return found


def first_process(marker_pid: int) -> int:
    """Host pid of the first process of the sandbox that a process runs in."""
    namespace = Path(f"/proc/{marker_pid}/ns/pid").readlink()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            numbers = re.search(r"^NSpid:.*\t1$", (folder / "status").read_text(), re.MULTILINE)
            if numbers and (folder / "ns/pid").readlink() == namespace:
                return int(folder.name)
        except OSError:
            continue
    raise AssertionError(f"no first process beside {marker_pid}")


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def make_fake_bwrap(folder: Path, message: str) -> Path:
    """A program that fails as bwrap does, reachable for every user."""
    fake = folder / "bwrap"
    fake.write_text(f"#!/bin/sh\necho 'bwrap: {message}' >&2\nexit 1\n")
    fake.chmod(0o755)
    for parent_folder in (folder, *folder.parents[:2]):
        parent_folder.chmod(0o755)
    return fake


async def begin(sandbox: BubblewrapSandbox, marker: str) -> tuple[asyncio.Task[object], int]:
    """Start `sleep <marker>` in the sandbox; its task and its host pid."""
    task: asyncio.Task[object] = asyncio.create_task(sandbox.exec(["sleep", marker], timeout_s=60))

    async def there() -> list[int]:
        return processes_like(f"sleep {marker}")

    await until(there)
    return task, processes_like(f"sleep {marker}")[0]


async def gone(marker: str) -> bool:
    return not processes_like(f"sleep {marker}")


async def test_limits_are_told(provider: BubblewrapProvider, tmp_path: Path) -> None:
    assert provider.limits_by is None
    await provider.create(SPEC)
    assert provider.limits_by in ("cgroup2", "cgroup1", "rlimits")
    async with bubblewrap(tmp_path / "weak", mode="rlimits") as weak:
        await weak.create(SPEC)
        assert weak.limits_by == "rlimits"


async def test_a_memory_bomb_is_seen_as_one(sandbox: BubblewrapSandbox, provider: BubblewrapProvider) -> None:
    result = await sandbox.exec(["perl", "-e", "my @a; push @a, 'x' x 8_000_000 while 1"], timeout_s=60)
    if provider.limits_by == "rlimits":
        assert result.exit_code not in (0, None)
    else:
        assert result.oom and result.signal == signal.SIGKILL and result.exit_code is None
    assert await sandbox.probe()
    after = await sandbox.exec("echo fine", timeout_s=20)
    assert (after.stdout, after.oom) == (b"fine\n", False)


async def test_files_alone_never_run_out_of_memory(sandbox: BubblewrapSandbox) -> None:
    script = "for f in /app /tests /logs /dev/shm; do head -c 200M /dev/zero > $f/fill; done; ls -l /app/fill | wc -l"
    result = await sandbox.exec(script, timeout_s=60)
    assert (result.exit_code, result.oom, result.stdout) == (0, False, b"1\n")
    assert await sandbox.probe()


async def test_memory_without_cgroups_is_bounded_per_process(tmp_path: Path) -> None:
    async with bubblewrap(tmp_path / "weak", mode="rlimits") as weak:
        sandbox = await weak.create(SPEC)
        result = await sandbox.exec(["perl", "-e", "my @a; push @a, 'x' x 8_000_000 while 1"], timeout_s=60)
        assert result.exit_code not in (0, None)
        assert await sandbox.probe()


def group_files(state_dir: Path, *names: str) -> list[str]:
    """Contents of the files of these names in the groups of all sandboxes."""
    bases = [Path(base) for record in records(state_dir) for base in read_record(record)["cgroups"]]
    return sorted(path.read_text().strip() for base in bases for name in names for path in base.glob(f"*/{name}"))


async def test_a_task_lowers_limits_and_cannot_raise_them(provider: BubblewrapProvider, tmp_path: Path) -> None:
    uncounted_mb = 104
    await provider.create(SandboxSpec(image=Image(), memory_mb=64, disk_mb=8, cpus=0.25))
    await provider.create(SandboxSpec(image=Image(), memory_mb=9999, disk_mb=9999))
    if provider.limits_by == "rlimits":
        assert group_files(tmp_path / "state", "pids.max") == []
        return
    memory = group_files(tmp_path / "state", "memory.max", "memory.limit_in_bytes")
    lowered, capped = 64 + 8 + uncounted_mb, SMALL.memory_mb + SMALL.disk_mb + uncounted_mb
    assert memory == sorted(str(mb << 20) for mb in (lowered, capped))
    assert group_files(tmp_path / "state", "pids.max") == [str(SMALL.pids)] * 2
    quotas = group_files(tmp_path / "state", "cpu.max", "cpu.cfs_quota_us")
    assert [quota.split()[0] for quota in quotas if quota.split()[0] != "max"] == ["25000"]


async def test_cpu_time_is_held_or_its_absence_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = replace(SMALL, cpus=0.5)
    async with bubblewrap(tmp_path / "state", config=config) as provider:
        for cpus in (None, 0.25, 4.0):
            await provider.create(SandboxSpec(image=Image(), cpus=cpus))
        quotas = group_files(tmp_path / "state", "cpu.max", "cpu.cfs_quota_us")
        assert [quota.split()[0] for quota in quotas] in (["25000", "50000", "50000"], [])
        assert bool(quotas) is ("not held to" not in caplog.text)
    async with bubblewrap(tmp_path / "weak", mode="rlimits", config=config) as provider:
        for _ in range(2):
            await provider.create(SPEC)
    assert caplog.text.count("sandboxes are not held to 0.5 CPUs") == 1 + (not quotas)


async def test_processes_are_bounded(tmp_path: Path) -> None:
    for mode in ("full", "rlimits"):
        async with bubblewrap(tmp_path / mode, mode=mode) as provider:
            sandbox = await provider.create(SPEC)
            many = "i=0; while [ $i -lt 200 ]; do sleep 609 & i=$((i+1)); done"
            result = await sandbox.exec(["sh", "-c", many], timeout_s=60)
            assert result.exit_code != 0 and b"fork" in result.stderr
            assert len(processes_like("sleep 609")) <= SMALL.pids
            assert await sandbox.probe()
        assert await gone("609")


async def test_a_sandbox_killed_from_outside_is_an_error_not_a_result(sandbox: BubblewrapSandbox) -> None:
    task, pid = await begin(sandbox, "610.5")
    os.kill(first_process(pid), signal.SIGKILL)
    with pytest.raises(SandboxError, match=r"killed by signal 9"):
        await task
    assert not await sandbox.probe()
    with pytest.raises(SandboxError, match="killed by signal 9"):
        await sandbox.exec("true", timeout_s=20)
    await sandbox.close()


async def test_a_command_killed_from_outside_is_a_result(sandbox: BubblewrapSandbox) -> None:
    task, pid = await begin(sandbox, "611.5")
    os.kill(pid, signal.SIGKILL)
    result = await task
    assert result.signal == signal.SIGKILL  # type: ignore[attr-defined]
    assert await sandbox.probe()


async def test_killing_bwrap_takes_the_sandbox_along(sandbox: BubblewrapSandbox) -> None:
    task, pid = await begin(sandbox, "612.5")
    os.kill(parent(first_process(pid)), signal.SIGKILL)
    with pytest.raises(SandboxError):
        await task
    await until(lambda: gone("612.5"))


async def test_the_supervisors_death_ends_its_sandboxes_and_a_new_one_starts(
    sandbox: BubblewrapSandbox, provider: BubblewrapProvider, tmp_path: Path
) -> None:
    task, _ = await begin(sandbox, "613.5")
    (record,) = records(tmp_path / "state")
    os.kill(read_record(record)["supervisor"]["pid"], signal.SIGKILL)
    with pytest.raises(SandboxError, match="supervisor"):
        await task
    await until(lambda: gone("613.5"))
    assert not await sandbox.probe()
    another = await provider.create(SPEC)
    assert (await another.exec("echo new", timeout_s=20)).stdout == b"new\n"
    await sandbox.close()


_OWNER = """
import asyncio, sys
from pathlib import Path
from agentrl.sandbox.bubblewrap import BubblewrapProvider
from agentrl.sandbox.config import SandboxConfig
from agentrl.sandbox.provider import Image, SandboxSpec

async def main():
    provider = BubblewrapProvider(SandboxConfig(), state_dir=Path(sys.argv[1]))
    sandboxes = [await provider.create(SandboxSpec(image=Image())) for _ in range(3)]
    await sandboxes[0].exec("setsid -f sleep 614.5 >/dev/null 2>&1", timeout_s=20)
    await sandboxes[1].exec("setsid -f sleep 614.5 >/dev/null 2>&1", timeout_s=20)
    await sandboxes[1].freeze()
    print("ready", flush=True)
    await sandboxes[2].exec("sleep 614.5", timeout_s=600)

asyncio.run(main())
"""


def start_owner(state_dir: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _OWNER, str(state_dir)]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None and owner.stdout.readline() == "ready\n"
    return owner


async def test_nothing_survives_the_kill_of_the_owner(tmp_path: Path) -> None:
    owner = start_owner(tmp_path)
    (record,) = records(tmp_path)
    supervisor = read_record(record)["supervisor"]["pid"]
    owner.kill()
    owner.communicate()
    await until(lambda: gone("614.5"))

    async def supervisor_is_gone() -> bool:
        return not is_there(Path(f"/proc/{supervisor}"))

    await until(supervisor_is_gone)
    assert cgroups_of(owner.pid) == []
    assert reap(tmp_path) == [] and records(tmp_path) == []


async def test_reap_removes_what_the_kill_of_owner_and_supervisor_left(tmp_path: Path) -> None:
    owner = start_owner(tmp_path)
    (record,) = records(tmp_path)
    assert reap(tmp_path) == [] and records(tmp_path) == [record], "a running owner's sandboxes are not touched"
    os.kill(read_record(record)["supervisor"]["pid"], signal.SIGKILL)
    owner.kill()
    owner.communicate()
    await until(lambda: gone("614.5"))
    assert reap(tmp_path) == []
    assert cgroups_of(owner.pid) == [] and records(tmp_path) == []


async def test_a_sandbox_past_its_lifetime_is_closed(tmp_path: Path) -> None:
    async with bubblewrap(tmp_path / "state", config=replace(SMALL, lifetime_s=0.3)) as provider:
        sandbox = await provider.create(SPEC)
        with pytest.raises(SandboxError, match="lifetime"):
            await sandbox.exec("sleep 60", timeout_s=60)


async def test_more_sandboxes_than_allowed_wait_for_their_turn_however_long_that_takes(tmp_path: Path) -> None:
    config = replace(SMALL, max_sandboxes=1, start_timeout_s=1.0)
    begun: list[str] = []
    async with bubblewrap(tmp_path / "state", config=config) as provider:
        first = await provider.create(SPEC)
        second = asyncio.create_task(provider.create(SPEC, on_begin=lambda: begun.append("second")))
        third = asyncio.create_task(provider.create(SPEC, on_begin=lambda: begun.append("third")))
        done, _ = await asyncio.wait({second, third}, timeout=1.5 * config.start_timeout_s)
        assert (done, begun) == (set(), [])
        await first.close()
        assert await (await second).probe()
        assert begun == ["second"]
        await second.result().close()
        assert await (await third).probe()
        assert begun == ["second", "third"]


async def test_many_start_at_once(tmp_path: Path) -> None:
    config = replace(SMALL, max_sandboxes=16)
    async with bubblewrap(tmp_path / "state", config=config) as provider:
        sandboxes = await asyncio.gather(*(provider.create(SPEC) for _ in range(16)))
        results = await asyncio.gather(*(s.exec("cat /proc/sys/kernel/hostname", timeout_s=60) for s in sandboxes))
        assert {result.stdout for result in results} == {b"sandbox\n"}
        assert provider.num_open == 16


async def test_one_flooding_sandbox_does_not_stop_the_others(tmp_path: Path) -> None:
    async with bubblewrap(tmp_path / "state") as provider:
        flooding, other = await provider.create(SPEC), await provider.create(SPEC)
        flood = asyncio.create_task(flooding.exec("yes", timeout_s=1.5))
        for _ in range(10):
            assert (await other.exec("echo hi", timeout_s=20)).stdout == b"hi\n"
        assert (await flood).timed_out


async def test_an_image_that_cannot_be_made_is_a_sandbox_error(provider: BubblewrapProvider, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for image in (
        Image(copies=(Copy(source=tmp_path / "file", target="/usr/bin/x"),)),
        Image(copies=(Copy(source=tmp_path / "none", target="/app/x"),)),
        Image(workdir="/etc/hosts/below"),
    ):
        with pytest.raises(SandboxError):
            await provider.create(SandboxSpec(image=image))
    assert provider.num_open == 0


async def test_a_bwrap_that_fails_says_why(tmp_path: Path) -> None:
    fake = make_fake_bwrap(tmp_path, "no luck today")
    provider = BubblewrapProvider(SMALL, state_dir=tmp_path / "state", host=replace(host(), bwrap=str(fake)))
    try:
        with pytest.raises(SandboxError, match="no luck today"):
            await provider.create(SPEC)
    finally:
        await provider.close()


async def test_users_inside(sandbox: BubblewrapSandbox) -> None:
    if not host().ids.ranged:
        with pytest.raises(UserError, match="only root"):
            await sandbox.exec("id", user="agent", timeout_s=20)
        return
    result = await sandbox.exec(
        "id -u; echo $HOME; cd; echo mine > x && cat x; cat /root/x", user="agent", timeout_s=20
    )
    assert result.stdout == b"1000\n/home/agent\nmine\n" and b"Permission denied" in result.stderr
    assert (await sandbox.exec("id -u", user="1234", timeout_s=20)).stdout == b"1234\n"
    capabilities = await sandbox.exec("grep CapEff /proc/self/status", user="agent", timeout_s=20)
    assert capabilities.stdout == b"CapEff:\t0000000000000000\n"
    owned = await sandbox.exec("chown agent: /app && tar -cf a.tar /etc/hosts && tar -xf a.tar && id -un", timeout_s=20)
    assert owned.exit_code == 0


async def test_an_unknown_user_is_the_users_error(sandbox: BubblewrapSandbox) -> None:
    with pytest.raises(UserError, match="nosuchuser"):
        await sandbox.exec("id", user="nosuchuser", timeout_s=20)


async def test_one_user_mode_refuses_other_users(tmp_path: Path) -> None:
    async with bubblewrap(tmp_path / "state", mode="one_user") as provider:
        sandbox = await provider.create(SPEC)
        with pytest.raises(UserError, match="only root"):
            await sandbox.exec("id", user="agent", timeout_s=20)


def test_a_host_without_bwrap_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="apt-get install bubblewrap"):
        check_host()


def test_a_host_that_refuses_namespaces_is_told_the_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make_fake_bwrap(tmp_path, "No permissions to create new namespace")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(UserError, match=r"No permissions.*apparmor_restrict_unprivileged_userns=0"):
        check_host()


_FAILING_OWNER = """
import asyncio, sys
from pathlib import Path
from agentrl.sandbox.bubblewrap import BubblewrapProvider
from agentrl.sandbox.config import SandboxConfig
from agentrl.sandbox.provider import Image, SandboxSpec

async def episode(provider, begun):
    sandbox = await provider.create(SandboxSpec(image=Image()))
    try:
        begun.set()
        await sandbox.exec("sleep 616.5", timeout_s=600)
    finally:
        await sandbox.close()

async def main():
    provider = BubblewrapProvider(SandboxConfig(), state_dir=Path(sys.argv[1]))
    begun = asyncio.Event()
    task = asyncio.create_task(episode(provider, begun))
    await begun.wait()
    sys.exit(7)

asyncio.run(main())
"""


async def test_an_owner_that_ends_in_the_middle_does_not_hang(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _FAILING_OWNER, str(tmp_path)]
    owner = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, said = await asyncio.wait_for(owner.communicate(), 60)
    assert owner.returncode == 7, said
    await until(lambda: gone("616.5"))


_HUMBLE_OWNER = """
import asyncio, sys
from pathlib import Path
from agentrl.sandbox.bubblewrap import BubblewrapProvider
from agentrl.sandbox.config import SandboxConfig
from agentrl.sandbox.provider import Image, SandboxSpec

async def main():
    provider = BubblewrapProvider(SandboxConfig(), state_dir=Path(sys.argv[1]))
    sandbox = await provider.create(SandboxSpec(image=Image()))
    result = await sandbox.exec("id -u; sleep 615.5", timeout_s=1)
    print(result.stdout, result.timed_out, await sandbox.kill_all(), await sandbox.probe())
    await provider.close()

asyncio.run(main())
"""


def test_an_owner_without_privileges_gets_sandboxes_too(tmp_path: Path) -> None:
    humble = ["setpriv", "--bounding-set=-all,+setfcap", "--inh-caps=-all"] if os.geteuid() == 0 else []
    command = [*humble, sys.executable, "-c", _HUMBLE_OWNER, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "b'0\\n' True 0 True\n", done.stderr
    assert processes_like("sleep 615.5") == [] and records(tmp_path) == []


async def test_closing_while_commands_begin_never_hangs(provider: BubblewrapProvider) -> None:
    for delay_steps in range(40):
        sandbox = await provider.create(SPEC)
        commands = [asyncio.create_task(sandbox.exec("true", timeout_s=60)) for _ in range(3)]
        for _ in range(delay_steps):
            await sandbox.probe() if delay_steps % 10 == 9 else await asyncio.sleep(0)
        for command in commands:
            command.cancel()
        await asyncio.gather(*commands, return_exceptions=True)
        async with asyncio.timeout(20):
            await sandbox.close()


async def test_starts_that_are_cancelled_at_any_moment_leave_the_others_alone(provider: BubblewrapProvider) -> None:
    witness = await provider.create(SPEC)
    for delay_ms in range(0, 40, 2):
        starting = asyncio.create_task(provider.create(SPEC))
        await asyncio.wait({starting}, timeout=delay_ms / 1000)
        starting.cancel()
        (made,) = await asyncio.gather(starting, return_exceptions=True)
        if isinstance(made, BubblewrapSandbox):
            await made.close()
    assert (await witness.exec("echo here", timeout_s=60)).stdout == b"here\n"
