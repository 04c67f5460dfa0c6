"""What a hostile command sees and does from inside a bubblewrap sandbox: nothing of the host, nothing to its jailer."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentrl.sandbox.provider import Sandbox
from tests.fixtures.sandboxes import MODES, SPEC, bubblewrap


@pytest.fixture(params=MODES)
async def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sandbox]:
    async with bubblewrap(tmp_path / "state", mode=request.param) as provider:
        yield await provider.create(SPEC)


async def output(sandbox: Sandbox, script: str) -> str:
    result = await sandbox.exec(script, timeout_s=30)
    return (result.stdout + result.stderr).decode(errors="replace")


async def test_host_files_are_not_there(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host secret")
    assert "No such file" in await output(sandbox, f"cat {secret}")
    assert await sandbox.read(str(secret)) is None
    names = (await output(sandbox, "ls /")).split()
    assert sorted(set(names) - {"lib32", "lib64", "libx32"}) == sorted(
        (
            *("app", "bin", "dev", "etc", "home", "lib", "logs", "mnt", "opt", "proc", "root", "run", "sbin"),
            *("solution", "srv", "tests", "tmp", "usr", "var"),
        )
    )
    assert (await output(sandbox, "ls -A /root /home /run /var/lib /opt")).split() == [
        *("/home:", "agent", "/opt:", "/root:", "/run:", "/var/lib:"),
    ]
    assert "No such file" in await output(sandbox, "cat /etc/shadow")


async def test_host_processes_are_not_there(sandbox: Sandbox) -> None:
    commands = await output(sandbox, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert "python" not in commands and "pytest" not in commands
    assert (await output(sandbox, f"kill -9 {os.getpid()}")) != ""
    assert (await output(sandbox, "cat /proc/1/comm")).strip() == "sleep"


async def test_the_sandboxs_first_process_cannot_be_killed_from_inside(sandbox: Sandbox) -> None:
    await sandbox.exec("kill -9 1; kill -TERM 1; kill -INT 1; kill -9 -1", timeout_s=20)
    assert await sandbox.probe()
    assert await output(sandbox, "echo alive") == "alive\n"


async def test_killing_every_process_gives_a_true_result(sandbox: Sandbox) -> None:
    result = await sandbox.exec("kill -9 -1; exit 3", timeout_s=20)
    assert (result.exit_code, result.signal) == (3, None)


async def test_host_network_is_not_there(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        said = await output(sandbox, f"echo hello > /dev/tcp/127.0.0.1/{port}")
    assert "refused" in said
    assert (await output(sandbox, "cat /proc/net/dev | grep -c :")).strip() == "1"
    assert "unreachable" in await output(sandbox, "echo hello > /dev/tcp/1.1.1.1/53")


async def test_host_environment_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sandbox: Sandbox) -> None:
    monkeypatch.setenv("AGENTRL_TEST_SECRET", "host secret")
    async with bubblewrap(tmp_path / "with_secret") as provider:
        other = await provider.create(SPEC)
        for place in (sandbox, other):
            names = await output(place, "env; cat /proc/[0-9]*/environ | tr '\\0' '\\n'")
            assert "host secret" not in names
            env = dict(line.split("=", 1) for line in (await output(place, "env")).splitlines())
            assert set(env) == {"PATH", "LANG", "TERM", "HOME", "PWD", "SHLVL", "_"}


REFUSED = (
    "echo 1 > /proc/sys/kernel/panic",
    "echo b > /proc/sysrq-trigger",
    "echo 99999 > /proc/sys/vm/max_map_count",
    "echo core > /proc/sys/kernel/core_pattern",
    "mount -t tmpfs none /mnt",
    "mount -o remount,rw /usr",
    "umount /proc",
    "unshare -Ur true",
    "unshare -m true",
    "mknod /tmp/disk b 254 0",
    "chroot / true",
    "touch /usr/bin/x",
    "rm /usr/bin/env",
    "rm /bin || rm -r /lib64",
    "echo x > /etc/ld.so.preload",
    "mv /etc/ld.so.preload /etc/was",
    "mv /tests /was",
    "hostname other",
    "ip link add dummy0 type dummy",
    "dmesg",
    "touch /dev/x",
)


async def test_what_would_change_or_tell_of_the_host_is_refused(sandbox: Sandbox) -> None:
    succeeded = []
    for script in REFUSED:
        result = await sandbox.exec(script, timeout_s=20)
        if result.exit_code in (0, None):
            succeeded.append((script, result))
    assert succeeded == []
    assert await sandbox.probe()


async def test_no_capability_reaches_the_kernel(sandbox: Sandbox) -> None:
    status = await output(sandbox, "cat /proc/self/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["NoNewPrivs"] == "1"
    own_files_users_and_processes = 0b1111_1011
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(fields[name], 16) & ~own_files_users_and_processes == 0


async def test_setuid_programs_gain_nothing(sandbox: Sandbox) -> None:
    script = "cp /bin/bash /tmp/rootbash && chmod 4755 /tmp/rootbash && ls -l /tmp/rootbash"
    assert "rwsr" in await output(sandbox, script)
    groups = await output(sandbox, "grep -E '^(Uid|CapEff)' /proc/self/status")
    assert "Uid:\t0\t0\t0\t0" in groups


async def test_a_visitor_shows_nothing_of_its_owner(sandbox: Sandbox) -> None:
    """While files are put and commands begin, a watcher inside looks for processes that are not the sandbox's."""
    watcher = "while :; do cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ; readlink /proc/[0-9]*/exe; done"
    await sandbox.exec(f"setsid -f sh -c '{watcher}' > /tmp/seen 2>/dev/null", timeout_s=20)
    for number in range(20):
        await sandbox.write(f"/app/{number}", b"x" * 1000)
        await sandbox.exec("true", timeout_s=20)
    await sandbox.kill_all()
    seen = await output(
        sandbox, "tr '\\0' '\\n' < /tmp/seen | grep -cE '/agentrl|agentrl-|sys.path.insert|VIRTUAL_ENV|python'"
    )
    assert seen.strip() == "0"


async def test_descriptors_of_the_owner_are_not_inherited(sandbox: Sandbox) -> None:
    listed = (await output(sandbox, "ls /proc/self/fd")).split()
    assert set(listed) <= {"0", "1", "2", "3"}  # 3 is the listing itself


def test_sandbox_ids_are_not_the_owners() -> None:
    """Where the owner is root, root inside is nobody outside."""
    ids = MODES["full"]().ids
    if os.geteuid() == 0 and ids.ranged:
        assert subprocess.run(["getent", "passwd", str(ids.first)], capture_output=True, check=False).stdout == b""
    else:
        assert ids.first == os.geteuid()
