"""What a hostile command sees and does from inside a bubblewrap sandbox: nothing of the host, nothing to its jailer."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.sandbox.provider import Sandbox
from agentrl.sandbox.supervisor import first_process
from tests.fixtures.sandboxes import MODES, SMALL, SPEC, bubblewrap, is_there


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
    assert (await output(sandbox, "cat /proc/1/comm")).strip() == first_process.NAME


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


async def opened_for_writing(sandbox: Sandbox, *folders: str) -> list[str]:
    """Files below folders that can be opened for writing. Nothing is written."""
    script = (
        "use File::Find; find({no_chdir => 1, wanted => sub { -f $_ && sysopen(F, $_, 1) && print qq($_\\n) }}, @ARGV)"
    )
    result = await sandbox.exec(["perl", "-e", script, *folders], timeout_s=60, max_output_bytes=1 << 20)
    return result.stdout.decode().split()


async def test_no_kernel_setting_can_be_opened_for_writing(sandbox: Sandbox) -> None:
    folders = ("/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/sysrq-trigger", "/proc/kcore")
    assert await opened_for_writing(sandbox, *folders) == []
    assert await output(sandbox, "ls -A /sys /boot /lost+found 2>/dev/null") == ""
    assert await output(sandbox, "ls /proc/1/root /proc/1/cwd 2>/dev/null | grep -x -e work -e boot") == ""


async def test_control_groups_are_out_of_reach(sandbox: Sandbox) -> None:
    """release_agent would run a program of the sandbox on the host."""
    assert await output(sandbox, "find / -xdev -name release_agent -o -xdev -name cgroup.procs 2>/dev/null") == ""
    mounts = await output(sandbox, "cat /proc/self/mounts")
    assert "cgroup" not in mounts and " /sys" not in mounts
    groups = await output(sandbox, "cat /proc/self/cgroup")
    assert "agentrl" not in groups.replace("/../", "/"), "the names of control groups tell of the host"


async def test_another_sandboxs_files_and_processes_are_not_there(
    sandbox: Sandbox, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    mode = request.node.callspec.params["sandbox"]
    async with bubblewrap(tmp_path / "neighbour", mode=mode) as provider:
        others = [await provider.create(SPEC) for _ in range(2)]
        for other in others:
            await other.write("/app/neighbours-secret", b"x")
            await other.exec("setsid -f sleep 630 >/dev/null 2>&1", timeout_s=20)
        for place in (sandbox, *others[:1]):
            expected = "" if place is sandbox else "/app/neighbours-secret\n"
            assert await output(place, "find / -xdev -name neighbours-secret 2>/dev/null") == expected
        assert await output(sandbox, "pgrep -f 'sleep 630'") == ""
        assert (await others[0].exec("kill -9 -1", timeout_s=20)).exit_code == 0
        assert await output(others[1], "pgrep -fc 'sleep 630$'") == "1\n"


async def test_the_ledger_and_the_run_are_not_there(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").write_text("of the host")
    with (tmp_path / "ledger.sqlite").open():
        find = "find / -xdev \\( -name 'ledger*' -o -name 'state' \\) 2>/dev/null; ls -l /proc/*/fd | grep -i ledger"
        assert await output(sandbox, find) == ""
    assert tmp_path.name not in await output(sandbox, "cat /proc/self/mountinfo /proc/mounts")


async def test_abstract_sockets_of_the_host_are_not_there(sandbox: Sandbox) -> None:
    """They have no file: only the network namespace keeps them apart."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(b"\0agentrl-test")
        server.listen()
        connect = (
            "use Socket; socket(S, AF_UNIX, SOCK_STREAM, 0); connect(S, sockaddr_un(qq(\\0agentrl-test))) or print $!"
        )
        assert (await sandbox.exec(["perl", "-e", connect], timeout_s=20)).stdout == b"Connection refused"
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(b"\0agentrl-test")
    assert "agentrl-test" not in await output(sandbox, "cat /proc/net/unix")


async def test_raw_packet_and_host_sockets_are_refused(sandbox: Sandbox) -> None:
    script = "for (@ARGV) { ($f, $t, $p) = split /,/; socket(S, $f, $t, $p) ? print qq(open\\n) : print $!+0, qq(\\n) }"
    raw, packet, vsock, netlink_audit = "2,3,1", "17,3,0", "40,1,0", "38,5,0"
    result = await sandbox.exec(["perl", "-e", script, raw, packet, vsock, netlink_audit], timeout_s=20)
    assert b"open" not in result.stdout and len(result.stdout.split()) == 4


async def test_shared_memory_of_the_host_is_not_there(sandbox: Sandbox) -> None:
    (Path("/dev/shm") / "agentrl-test").write_text("of the host")
    try:
        assert await output(sandbox, "ls -A /dev/shm") == ""
        assert (
            len((await output(sandbox, "cat /proc/sysvipc/shm /proc/sysvipc/msg /proc/sysvipc/sem")).splitlines()) == 3
        )
    finally:
        (Path("/dev/shm") / "agentrl-test").unlink()


async def test_signals_reach_no_process_of_the_host(sandbox: Sandbox) -> None:
    """Its owner, the supervisor and the door are none of the pids inside, whatever numbers are tried."""
    victim = bystander()
    try:
        pids = [victim.pid, os.getpid(), *map(int, (await asyncio.to_thread(children)))]
        await sandbox.exec(f"kill -9 {' '.join(map(str, pids))}; kill -9 -1", timeout_s=20)
        await sandbox.exec("kill -9 $(seq 2 40000)", timeout_s=20)
        assert victim.poll() is None
        assert await sandbox.probe() and await output(sandbox, "echo alive") == "alive\n"
    finally:
        victim.kill()
        victim.wait()


def bystander() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "631"])


def children() -> list[str]:
    """Children of this process: supervisors among them."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


async def test_setuid_programs_give_a_user_nothing(sandbox: Sandbox, request: pytest.FixtureRequest) -> None:
    await sandbox.exec("cp /bin/bash /tmp/rootbash && chmod 4755 /tmp/rootbash", timeout_s=20)
    if not MODES[request.node.callspec.params["sandbox"]]().ids.ranged:
        assert "Uid:\t0\t0\t0\t0" in await output(sandbox, "/tmp/rootbash -p -c 'cat /proc/self/status'")
        return
    script = "/tmp/rootbash -p -c 'id -u; cat /root/x; grep CapEff /proc/self/status'"
    result = await sandbox.exec(script, user="1000", timeout_s=20)
    assert result.stdout == b"1000\nCapEff:\t0000000000000000\n" and b"Permission denied" in result.stderr


async def test_devices_are_the_harmless_ones(sandbox: Sandbox) -> None:
    devices = set((await output(sandbox, "find /dev -type b -o -type c | sort")).split())
    harmless = {f"/dev/{name}" for name in ("full", "null", "random", "tty", "urandom", "zero", "ptmx", "console")}
    assert devices - harmless - {"/dev/pts/ptmx"} == set()
    assert await output(sandbox, "find / -xdev \\( -type b -o -type c \\) -not -path '/dev/*' 2>/dev/null") == ""


async def test_limits_cannot_be_raised_from_inside(sandbox: Sandbox) -> None:
    said = await output(sandbox, "ulimit -Hn; ulimit -n 1048576; ulimit -Hc; nice -n -5 true; ulimit -c 100")
    assert said.startswith("1024\n") and said.count("not permitted") + said.count("Permission denied") == 3, said


@pytest.mark.parametrize("path", ["/proc/self/environ", "/proc/self/maps", "/proc/self/fd/0", "/proc/thread-self/comm"])
async def test_the_visitors_own_process_cannot_be_read_through_it(sandbox: Sandbox, path: str) -> None:
    """`read` opens files for the owner: a link to what /proc calls `self` must not show the process that opens it."""
    await sandbox.exec(["ln", "-s", path, "/app/link"], timeout_s=20)
    assert await sandbox.read("/app/link") is None
    assert await sandbox.read(path) is None


async def test_a_system_of_its_own_is_nobody_elses(tmp_path: Path) -> None:
    """Where commands may change /usr, they change a layer of their sandbox: not the host, and not the next sandbox."""
    async with bubblewrap(tmp_path / "state", config=replace(SMALL, writable_system=True)) as provider:
        if not provider.capabilities.build:
            assert MODES["full"]().no_overlay is not None
            return
        first = await provider.create(SPEC)
        await output(first, "echo planted > /usr/bin/agentrl-planted; rm /usr/bin/perl; chmod 000 /usr/bin/tail")
        assert await output(first, "cat /usr/bin/agentrl-planted; command -v perl") == "planted\n"
        second = await provider.create(SPEC)
        assert "planted" not in await output(second, "ls /usr/bin") and await output(second, "command -v perl") != ""
    assert not is_there(Path("/usr/bin/agentrl-planted")) and is_there(Path("/usr/bin/perl"))
