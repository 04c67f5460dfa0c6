"""What every `SandboxProvider` promises. A new provider joins by adding itself to `PROVIDERS`."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from agentrl.errors import SandboxError
from agentrl.sandbox.provider import Copy, Image, Sandbox, SandboxProvider, SandboxSpec
from tests.fixtures.sandboxes import MODES, SPEC, bubblewrap, until, until_there

PROVIDERS: dict[str, Callable[[Path], AbstractAsyncContextManager[SandboxProvider]]] = {
    f"bubblewrap-{mode}": partial(bubblewrap, mode=mode) for mode in MODES
}


@pytest.fixture(params=PROVIDERS)
async def provider(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SandboxProvider]:
    async with PROVIDERS[request.param](tmp_path / "state") as made:
        yield made


@pytest.fixture
async def sandbox(provider: SandboxProvider) -> Sandbox:
    return await provider.create(SPEC)


async def test_output_and_exit_code(sandbox: Sandbox) -> None:
    result = await sandbox.exec("echo out; echo err >&2; exit 3", timeout_s=20)
    assert (result.exit_code, result.signal, result.stdout, result.stderr) == (3, None, b"out\n", b"err\n")
    assert not (result.timed_out or result.oom or result.truncated)
    assert result.bytes_total == 8
    assert result.leftover_processes == 0
    assert result.duration_s > 0


async def test_exit_codes_are_true(sandbox: Sandbox) -> None:
    for code in (0, 1, 2, 100, 125, 126, 127, 128, 137, 255):
        result = await sandbox.exec(["sh", "-c", f"exit {code}"], timeout_s=20)
        assert (result.exit_code, result.signal) == (code, None)


async def test_signals_are_not_exit_codes(sandbox: Sandbox) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGHUP):
        result = await sandbox.exec(f"kill -{number.value} $$", timeout_s=20)
        assert (result.exit_code, result.signal) == (None, number)
    assert await sandbox.probe()


async def test_command_line_runs_as_it_is(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["printf", "%s|", "a b", "$HOME", "*"], timeout_s=20)
    assert result.stdout == b"a b|$HOME|*|"


async def test_what_cannot_be_run_exits_as_in_a_shell(sandbox: Sandbox) -> None:
    missing = await sandbox.exec(["no-such-program"], timeout_s=20)
    assert missing.exit_code == 127 and b"no-such-program" in missing.stderr
    folder = await sandbox.exec(["/tmp"], timeout_s=20)
    assert folder.exit_code == 126
    nowhere = await sandbox.exec("true", cwd="/no/such/folder", timeout_s=20)
    assert nowhere.exit_code == 126 and b"/no/such/folder" in nowhere.stderr
    assert (await sandbox.exec("echo a\0b", timeout_s=20)).exit_code == 126
    assert (await sandbox.exec("echo \ud800", timeout_s=20)).exit_code == 126
    assert (await sandbox.exec(["echo", "x" * 300_000], timeout_s=20)).exit_code == 126
    assert await sandbox.probe()


async def test_cwd_and_environment(sandbox: Sandbox) -> None:
    result = await sandbox.exec('pwd; echo "$A-$HOME"', env={"A": "ä b"}, timeout_s=20)
    assert result.stdout.decode() == "/app\nä b-/root\n"
    assert (await sandbox.exec("pwd", cwd="/tmp", timeout_s=20)).stdout == b"/tmp\n"


async def test_image_has_files_environment_and_workdir(provider: SandboxProvider, tmp_path: Path) -> None:
    source = tmp_path / "image"
    (source / "sub").mkdir(parents=True)
    (source / "run.sh").write_text("echo ran\n")
    (source / "run.sh").chmod(0o755)
    (source / "sub" / "link").symlink_to("../run.sh")
    image = Image(
        copies=(Copy(source=source, target="/srv/it"), Copy(source=source / "run.sh", target="/etc/one/two")),
        env={"A": "1", "B": "2"},
        workdir="/srv/it/new",
    )
    sandbox = await provider.create(SandboxSpec(image=image))
    result = await sandbox.exec(
        "pwd; sh ../sub/link; ../run.sh; cat /etc/one/two; echo $A$B", env={"B": "3"}, timeout_s=20
    )
    assert result.stdout == b"/srv/it/new\nran\nran\necho ran\n13\n"
    (source / "run.sh").write_text("changed outside\n")
    assert await sandbox.read("/srv/it/run.sh") == b"echo ran\n"


async def test_stdin_ends(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 2000
    result = await sandbox.exec("sha256sum; cat", stdin=data, timeout_s=20)
    assert re.match(rb"[0-9a-f]{64}  -\n$", result.stdout)
    assert (await sandbox.exec("cat; echo end", stdin=b"", timeout_s=20)).stdout == b"end\n"
    assert (await sandbox.exec("cat; echo end", timeout_s=20)).stdout == b"end\n"
    unread = await sandbox.exec("exit 5", stdin=data, timeout_s=20)
    assert unread.exit_code == 5


async def test_output_is_bytes(sandbox: Sandbox) -> None:
    result = await sandbox.exec("printf '\\000\\377\\n'; printf 'ünï' >&2", timeout_s=20)
    assert result.stdout == b"\x00\xff\n"
    assert result.stderr.decode() == "ünï"


async def test_output_is_capped_and_counted(sandbox: Sandbox) -> None:
    result = await sandbox.exec("head -c 1000000 /dev/zero; echo x >&2", max_output_bytes=1000, timeout_s=20)
    assert len(result.stdout) == 1000 and result.stderr == b"x\n"
    assert result.truncated and result.bytes_total == 1_000_002
    exact = await sandbox.exec("printf 12345", max_output_bytes=5, timeout_s=20)
    assert exact.stdout == b"12345" and not exact.truncated


async def test_endless_output_is_a_timeout_with_its_start(sandbox: Sandbox) -> None:
    result = await sandbox.exec("yes", timeout_s=0.5)
    assert result.timed_out and result.exit_code is None
    assert result.stdout.startswith(b"y\ny\n") and len(result.stdout) == 4096
    assert result.truncated and result.bytes_total > 4096


async def test_timeout_keeps_partial_output(sandbox: Sandbox) -> None:
    result = await sandbox.exec("echo before; while :; do :; done", timeout_s=0.5)
    assert result.timed_out and result.exit_code is None
    assert result.stdout == b"before\n"
    assert (await sandbox.exec("echo still here", timeout_s=20)).stdout == b"still here\n"


async def test_result_does_not_wait_for_a_background_process(sandbox: Sandbox) -> None:
    result = await sandbox.exec("sleep 600 & echo done", timeout_s=60)
    assert (result.exit_code, result.stdout, result.timed_out) == (0, b"done\n", False)
    assert result.leftover_processes == 1
    assert (await sandbox.exec("pgrep -c sleep", timeout_s=20)).stdout != b"0\n"


async def test_daemon_that_keeps_nothing_open_is_counted(sandbox: Sandbox) -> None:
    result = await sandbox.exec("setsid -f sleep 600 >/dev/null 2>&1 </dev/null; echo done", timeout_s=60)
    assert result.leftover_processes == 1


async def test_timeout_kills_what_left_its_session(sandbox: Sandbox) -> None:
    script = "(setsid setsid sh -c 'while :; do sleep 1; done' &) ; setsid -f sleep 601 >/dev/null 2>&1; sleep 602"
    result = await sandbox.exec(script, timeout_s=0.5)
    assert result.timed_out and result.leftover_processes == 0
    assert (await sandbox.exec("pgrep -f 'sleep 60[12]|while'", timeout_s=20)).stdout == b""


async def test_timeout_spares_what_earlier_commands_left(sandbox: Sandbox) -> None:
    await sandbox.exec("setsid -f sh -c 'while :; do sleep 0.02; done' earlier >/dev/null 2>&1", timeout_s=20)
    assert (await sandbox.exec("sleep 603", timeout_s=0.5)).timed_out
    assert (await sandbox.exec("pgrep -f '^sh -c.*earlier$'", timeout_s=20)).exit_code == 0
    assert (await sandbox.exec("pgrep -fc 'sleep 603$'", timeout_s=20)).stdout == b"0\n"


async def test_kill_all_ends_everything_and_leaves_it_usable(sandbox: Sandbox) -> None:
    await sandbox.exec("for i in 1 2 3; do setsid -f sleep 604 >/dev/null 2>&1; done", timeout_s=20)
    assert await sandbox.kill_all() == 3
    assert await sandbox.kill_all() == 0
    assert (await sandbox.exec("pgrep -c sleep", timeout_s=20)).exit_code is not None
    assert (await sandbox.exec("pgrep -f 'sleep 604'", timeout_s=20)).stdout == b""


async def test_commands_run_one_after_another(sandbox: Sandbox) -> None:
    results = await asyncio.gather(
        *(sandbox.exec("set -C; echo > lock && sleep 0.02 && rm lock", timeout_s=20) for _ in range(5))
    )
    assert [result.exit_code for result in results] == [0] * 5


async def test_cancelling_kills_the_command(sandbox: Sandbox) -> None:
    await sandbox.exec("mkfifo begun", timeout_s=20)
    running = asyncio.create_task(sandbox.exec("exec 3<>begun; echo x >&3; sleep 605", timeout_s=60))
    await until_there(sandbox, "/proc/3/comm")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await sandbox.exec("pgrep -f 'sleep 605'", timeout_s=20)).stdout == b""


async def test_files_go_in_and_out(sandbox: Sandbox, tmp_path: Path) -> None:
    data = bytes(range(256)) * 100
    await sandbox.write("/app/new/deep/file", data, mode=0o640)
    assert await sandbox.read("/app/new/deep/file") == data
    assert (await sandbox.exec("stat -c %a:%U new/deep/file", timeout_s=20)).stdout == b"640:root\n"
    await sandbox.write("/app/new/deep/file", b"short")
    assert await sandbox.read("/app/new/deep/file") == b"short"
    source = tmp_path / "folder"
    (source / "empty").mkdir(parents=True)
    (source / "tool").write_bytes(b"#!/bin/sh\necho tool\n")
    (source / "tool").chmod(0o755)
    await sandbox.upload(source, "/app/up")
    await sandbox.upload(source / "tool", "/app/single")
    assert (await sandbox.exec("up/tool; ./single; ls -d up/empty", timeout_s=20)).stdout == b"tool\ntool\nup/empty\n"


async def test_reading_what_is_no_file_gives_none(sandbox: Sandbox) -> None:
    await sandbox.exec("mkfifo fifo; ln -s loop loop; ln -s /app/real link; echo x > real", timeout_s=20)
    for path in ("/no/such", "/app", "/app/fifo", "/app/loop", "/app/real/below", "/dev/zero"):
        assert await sandbox.read(path) is None
    assert await sandbox.read("/app/link") == b"x\n"


async def test_reading_too_much_raises(sandbox: Sandbox) -> None:
    await sandbox.exec("truncate -s 10G sparse; printf 123 > small", timeout_s=20)
    with pytest.raises(ValueError, match="sparse"):
        await sandbox.read("/app/sparse", max_bytes=100)
    with pytest.raises(ValueError, match="small"):
        await sandbox.read("/app/small", max_bytes=2)
    assert await sandbox.read("/app/small", max_bytes=3) == b"123"


async def test_writing_replaces_a_link_instead_of_following_it(sandbox: Sandbox) -> None:
    await sandbox.exec("echo old > target; ln -s /app/target link; ln target hard", timeout_s=20)
    await sandbox.write("/app/link", b"new")
    await sandbox.write("/app/hard", b"new")
    assert await sandbox.read("/app/target") == b"old\n"


async def test_a_full_disk_is_the_commands_own_error(sandbox: Sandbox) -> None:
    result = await sandbox.exec("head -c 100M /dev/zero > big", timeout_s=60)
    assert result.exit_code == 1 and b"No space left" in result.stderr
    assert not result.oom
    with pytest.raises(OSError, match="No space left") as caught:
        await sandbox.write("/app/more", b"x" * 100_000)
    assert not isinstance(caught.value, SandboxError)
    await sandbox.write("/tests/still", b"graded")
    assert await sandbox.probe()
    assert (await sandbox.exec("rm big; echo ok > more", timeout_s=20)).exit_code == 0


async def test_a_fork_bomb_is_bounded_and_killed(sandbox: Sandbox) -> None:
    result = await sandbox.exec("bomb() { bomb | bomb & }; bomb; sleep 60", timeout_s=1)
    assert result.timed_out or result.exit_code is not None
    assert await sandbox.probe()
    await sandbox.kill_all()
    after = await sandbox.exec("pgrep -c bash; echo alive", timeout_s=20)
    assert after.stdout.endswith(b"alive\n")


async def test_many_commands_in_a_row(sandbox: Sandbox) -> None:
    for number in range(200):
        result = await sandbox.exec(f"echo {number}", timeout_s=20)
        assert (result.exit_code, result.stdout) == (0, f"{number}\n".encode())


async def test_freezing_stops_and_thawing_goes_on(sandbox: Sandbox) -> None:
    await sandbox.exec("setsid -f sh -c 'while :; do echo >> ticks; sleep 0.01; done' >/dev/null 2>&1", timeout_s=20)
    await until_there(sandbox, "/app/ticks")
    await sandbox.freeze()
    frozen = await sandbox.read("/app/ticks")
    await asyncio.sleep(0.1)
    assert await sandbox.read("/app/ticks") == frozen
    assert await sandbox.probe()
    await sandbox.thaw()

    async def goes_on() -> bool:
        return await sandbox.read("/app/ticks") != frozen

    await until(goes_on)


async def test_freezing_stops_those_that_fork_and_those_that_just_came(sandbox: Sandbox) -> None:
    forking = "while :; do sh -c 'echo >> /app/ticks'; done"
    await sandbox.exec(f'for i in 1 2 3; do setsid -f sh -c "{forking}" >/dev/null 2>&1; done', timeout_s=20)
    await until_there(sandbox, "/app/ticks")
    for _ in range(10):
        coming = asyncio.create_task(sandbox.exec(["sh", "-c", "echo >> /app/ticks"], timeout_s=20))
        await sandbox.freeze()
        await asyncio.sleep(0.02)
        frozen = await sandbox.read("/app/ticks")
        await asyncio.sleep(0.02)
        assert await sandbox.read("/app/ticks") == frozen
        await sandbox.thaw()
        assert (await coming).exit_code == 0


async def test_a_commands_clock_stops_with_it(sandbox: Sandbox) -> None:
    running = asyncio.create_task(sandbox.exec("echo > begun; sleep 0.2; echo done", timeout_s=1.5))
    await until_there(sandbox, "/app/begun")
    await sandbox.freeze()
    await asyncio.sleep(1.6)
    await sandbox.thaw()
    result = await running
    assert (result.exit_code, result.stdout, result.timed_out) == (0, b"done\n", False)


async def test_commands_wait_while_frozen(sandbox: Sandbox) -> None:
    await sandbox.freeze()
    waiting = asyncio.create_task(sandbox.exec("echo ran", timeout_s=20))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await sandbox.thaw()
    assert (await waiting).stdout == b"ran\n"


async def test_a_frozen_sandbox_can_be_closed(sandbox: Sandbox) -> None:
    await sandbox.exec("setsid -f sleep 606 >/dev/null 2>&1", timeout_s=20)
    await sandbox.freeze()
    await sandbox.close()
    assert not await sandbox.probe()


async def test_closing_twice_and_using_it_after(sandbox: Sandbox) -> None:
    await sandbox.close()
    await sandbox.close()
    assert not await sandbox.probe()
    with pytest.raises(SandboxError, match="closed"):
        await sandbox.exec("true", timeout_s=20)
    with pytest.raises(SandboxError):
        await sandbox.write("/app/x", b"")


async def test_closing_ends_a_command_in_flight(sandbox: Sandbox) -> None:
    running = asyncio.create_task(sandbox.exec("echo > begun; sleep 607", timeout_s=60))
    await until_there(sandbox, "/app/begun")
    await sandbox.close()
    with pytest.raises(SandboxError):
        await running


async def test_sandboxes_do_not_share_files_or_processes(provider: SandboxProvider) -> None:
    one, other = await asyncio.gather(provider.create(SPEC), provider.create(SPEC))
    assert one.id != other.id
    await one.exec("echo secret > /tmp/mine; setsid -f sleep 608 >/dev/null 2>&1", timeout_s=20)
    seen = await other.exec("ls /tmp; pgrep -f 'sleep 608'", timeout_s=20)
    assert seen.stdout == b""


async def test_closing_the_provider_closes_its_sandboxes(provider: SandboxProvider) -> None:
    sandboxes = [await provider.create(SPEC) for _ in range(3)]
    await provider.close()
    await provider.close()
    assert [await sandbox.probe() for sandbox in sandboxes] == [False] * 3
    with pytest.raises(SandboxError, match="closed"):
        await provider.create(SPEC)
    for sandbox in sandboxes:
        await sandbox.close()
