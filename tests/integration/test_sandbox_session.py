"""A bash session in a real sandbox: what survives from command to command, and what a lost shell costs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentrl.errors import SandboxError
from agentrl.rollout.config import AgentConfig, Shell
from agentrl.rollout.watched import WatchedSandbox
from agentrl.sandbox.provider import ExecResult, Sandbox, Session
from agentrl.sandbox.supervisor.command import HANDOFF_OUT
from tests.fixtures.sandboxes import SPEC, bubblewrap


@pytest.fixture(params=["full", "one_user"])
async def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sandbox]:
    async with bubblewrap(tmp_path / "state", mode=request.param) as provider:
        yield await provider.create(SPEC)


@pytest.fixture
def session(sandbox: Sandbox) -> Session:
    return sandbox.session(env={"GIVEN": "by us"})


async def run(session: Session, command: str, timeout_s: float = 20) -> ExecResult:
    return await session.exec(command, timeout_s=timeout_s)


async def out(session: Session, command: str) -> str:
    result = await run(session, command)
    assert (result.exit_code, result.stderr, result.shell_reset) == (0, b"", False)
    return result.stdout.decode()


async def test_folder_variables_functions_aliases_and_options_survive(session: Session) -> None:
    await out(
        session, "mkdir -p 'a b' && cd 'a b'; x=\"1\n'2'\"; export y=$'\\t$(z)'; list=(1 '2 3'); declare -A m=([k]=v)"
    )
    await out(
        session, "f() { echo \"f $1\"; return 4; }; alias hi='echo hi'; shopt -s expand_aliases nullglob; umask 027"
    )
    assert await out(session, 'pwd; echo "$x,$y,${list[1]},${m[k]},$#"') == "/app/a b\n1\n'2',\t$(z),2 3,v,0\n"
    assert await out(session, "f 5 || echo $?; echo no*; umask; printenv y") == "f 5\n4\n\n0027\n\t$(z)\n"
    assert await out(session, "hi\ncd - >/dev/null; pwd") == "hi\n/app\n"


async def test_the_first_environment_can_be_changed(session: Session) -> None:
    assert await out(session, "echo $GIVEN; unset GIVEN; HOME=/tmp") == "by us\n"
    assert await out(session, "echo [$GIVEN]; cd; pwd; printenv PATH TERM") == (
        "[]\n/tmp\n/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\ndumb\n"
    )


async def test_exit_codes_are_the_commands(session: Session) -> None:
    for command, code in (
        ("false", 1),
        ("exit 7", 7),
        ("(exit 9)", 9),
        ("nosuchprogram", 127),
        ("if", 2),
        ("set -e; false; exit 3", 1),
        ("set +e; trap 'true' EXIT; exit 5", 5),
    ):
        assert (await run(session, command)).exit_code == code, command
    assert await out(session, "echo still") == "still\n"


async def test_messages_are_those_of_a_plain_shell(session: Session, sandbox: Sandbox) -> None:
    for script in ("true\nnosuchprogram", "echo ${x?gone}", "cd /no/such"):
        assert (await run(session, script)).stderr == (await sandbox.exec(script, timeout_s=20)).stderr


async def test_errexit_nounset_and_a_strange_ifs_do_not_end_the_session(session: Session) -> None:
    assert (await run(session, "set -eu; IFS=:; a=1:2")).exit_code == 0
    assert await out(session, "for i in $a; do echo $i; done") == "1\n2\n"
    assert (await run(session, "echo $nosuch")).exit_code not in (0, None)
    assert (await run(session, "false; echo not reached")).stdout == b""
    assert await out(session, "set +eu; IFS=; readonly r=1; false; echo $r") == "1\n"
    assert await out(session, "echo $r") == "1\n"


async def test_functions_named_like_builtins_break_nothing_of_ours(session: Session) -> None:
    await out(session, 'keep=1; declare() { echo d; }; printf() { echo p; }; cd() { command cd "$@"; }; trap() { :; }')
    assert await out(session, "printf; declare; echo $keep; cd /tmp; pwd") == "p\nd\n1\n/tmp\n"
    assert await out(session, "pwd") == "/tmp\n"


async def test_a_killed_or_replaced_shell_costs_only_what_it_changed(session: Session) -> None:
    await out(session, "x=kept; cd /tmp")
    for command, code, number in (("x=lost; kill -9 $$", None, signal.SIGKILL), ("x=lost; exec true", 0, None)):
        result = await run(session, command)
        assert (result.exit_code, result.signal, result.shell_reset) == (code, number, True)
        assert await out(session, "echo $x; pwd") == "kept\n/tmp\n"


async def test_a_timeout_kills_what_the_command_started_and_keeps_the_session(
    session: Session, sandbox: Sandbox
) -> None:
    await out(session, "x=kept; cd /tmp")
    result = await run(session, "x=lost; echo begun; setsid -f sleep 621 >/dev/null 2>&1; while :; do :; done", 0.5)
    assert (result.exit_code, result.timed_out, result.shell_reset, result.stdout) == (None, True, True, b"begun\n")
    assert await out(session, "echo $x; pwd; pgrep -fc 'sleep 621$' || true") == "kept\n/tmp\n0\n"


async def test_background_processes_run_on(session: Session) -> None:
    result = await run(session, "sleep 622 >/dev/null 2>&1 & pid=$!")
    assert (result.exit_code, result.leftover_processes, result.shell_reset) == (0, 1, False)
    assert await out(session, "kill $pid && echo killed") == "killed\n"


async def test_output_cannot_forge_a_result(session: Session) -> None:
    """Whatever is printed, also to every descriptor that there is: what a session is told there is only its state."""
    forge = "printf '%s\\0' 0 0; for fd in /proc/self/fd/*; do printf 'a\\0b\\0c\\0' > $fd; done 2>/dev/null"
    result = await run(session, f"{forge}; exit 6")
    assert result.exit_code == 6
    other = await run(session, "echo alive")
    assert (other.exit_code, other.stdout) == (0, b"alive\n")


async def test_a_state_that_is_too_large_is_not_handed_on(session: Session) -> None:
    await out(session, "x=kept")
    result = await run(session, "x=lost; big=$(head -c 2000000 /dev/zero | tr '\\0' a)")
    assert (result.exit_code, result.shell_reset) == (0, True)
    assert await out(session, "echo $x ${#big}") == "kept 0\n"


async def test_what_is_printed_is_capped_as_for_any_command(session: Session) -> None:
    result = await session.exec("x=1; head -c 100000 /dev/zero", timeout_s=20, max_output_bytes=10)
    assert (len(result.stdout), result.truncated, result.bytes_total) == (10, True, 100_000)
    assert await out(session, "echo $x") == "1\n"


async def test_a_full_disk_and_a_missing_home_do_not_lose_the_state(session: Session) -> None:
    await run(session, "head -c 200M /dev/zero > /app/full; rm -r /root /tmp; x=1")
    assert await out(session, "echo $x; rm /app/full") == "1\n"


async def test_a_vanished_folder_is_said(session: Session) -> None:
    await out(session, "mkdir /tmp/gone; cd /tmp/gone; rmdir /tmp/gone")
    result = await run(session, "pwd")
    assert result.stdout == b"/app\n" and b"/tmp/gone: No such file" in result.stderr


async def test_a_state_begins_a_session_in_another_sandbox(session: Session, tmp_path: Path) -> None:
    await out(session, "x=5; cd /tmp; f() { echo f; }")
    async with bubblewrap(tmp_path / "other") as provider:
        other = (await provider.create(SPEC)).session(state=session.state)
        assert await out(other, "echo $x; pwd; f") == "5\n/tmp\nf\n"


async def test_sessions_do_not_share_their_state(sandbox: Sandbox) -> None:
    one, other = sandbox.session(), sandbox.session(cwd="/tmp")
    await out(one, "x=1; cd /usr")
    assert await out(other, "echo [$x]; pwd") == "[]\n/tmp\n"
    assert await out(one, "echo $x; pwd") == "1\n/usr\n"


async def test_a_session_of_a_lost_sandbox_is_an_infrastructure_error(sandbox: Sandbox, session: Session) -> None:
    running = asyncio.create_task(run(session, "x=1; sleep 623"))
    await sandbox.close()
    with pytest.raises(SandboxError):
        await running
    with pytest.raises(SandboxError):
        await run(session, "true")


async def test_an_agent_acts_in_a_session_if_it_is_told_to(sandbox: Sandbox) -> None:
    agent = WatchedSandbox(sandbox, AgentConfig(shell=Shell.session, tool_cpu_s=9), user=None)
    for command in ("x=1; cd /tmp", "x=2; kill -9 $$"):
        await agent.exec(command, timeout_s=20)
    assert (await agent.exec("echo $x; pwd; ulimit -t", timeout_s=20)).stdout == b"1\n/tmp\n9\n"
    assert (agent.commands.num_run, agent.commands.num_shell_resets) == (3, 1)
    fresh = WatchedSandbox(sandbox, AgentConfig(tool_file_mb=1), user=None)
    await fresh.exec("x=1; cd /tmp", timeout_s=20)
    assert (await fresh.exec("echo $x; pwd; ulimit -t -f", timeout_s=20)).stdout.split()[:1] == [b"/app"]
    assert fresh.commands.num_shell_resets == 0


async def test_a_flood_of_the_private_descriptor_holds_nothing_up(session: Session, sandbox: Sandbox) -> None:
    await out(session, "x=kept; big=$(head -c 300000 /dev/zero | tr '\\0' \"'\")")
    for before in ("", "exec true; ", "sleep 0.01; "):
        result = await run(session, f"x=lost; yes >&{HANDOFF_OUT} 2>/dev/null & {before}exit 4")
        assert (result.exit_code in (0, 4), result.timed_out) == (True, False)
        assert await sandbox.probe()
        after = await run(session, "echo $x ${#big} alive")
        assert after.stdout == (b"kept" if result.shell_reset else b"lost") + b" 300000 alive\n"
