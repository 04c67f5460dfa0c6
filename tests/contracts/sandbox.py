"""What every `SandboxProvider` promises, as far as the command `sleep N` can tell. `SANDBOX_CHECKS` lists the checks.

Each takes an open provider.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from agentrl.errors import SandboxError
from agentrl.sandbox.provider import ExecResult, Image, Sandbox, SandboxProvider, SandboxSpec

SPEC = SandboxSpec(image=Image(workdir="/app"))

SandboxCheck = Callable[[SandboxProvider], Awaitable[None]]


async def begun(sandbox: Sandbox, command: str, *, timeout_s: float) -> asyncio.Task[ExecResult]:
    """A command in flight: a sandbox takes requests in their order, so one that answers a later probe has begun it."""
    running = asyncio.create_task(sandbox.exec(command, timeout_s=timeout_s))
    await asyncio.sleep(0)
    assert await sandbox.probe()
    return running


async def a_command_that_ends_has_its_exit_code(provider: SandboxProvider) -> None:
    sandbox = await provider.create(SPEC)
    result = await sandbox.exec("sleep 0.01", timeout_s=20)
    assert (result.exit_code, result.signal, result.timed_out) == (0, None, False)
    assert result.duration_s > 0


async def a_timeout_is_told_and_leaves_the_sandbox_usable(provider: SandboxProvider) -> None:
    sandbox = await provider.create(SPEC)
    result = await sandbox.exec(["sleep", "600"], timeout_s=0.2)
    assert (result.exit_code, result.timed_out) == (None, True)
    assert (await sandbox.exec("sleep 0", timeout_s=20)).exit_code == 0


async def files_go_in_and_out(provider: SandboxProvider) -> None:
    sandbox = await provider.create(SPEC)
    data = bytes(range(256))
    await sandbox.write("/app/new/file", data)
    assert await sandbox.read("/app/new/file") == data
    await sandbox.write("/app/new/file", b"short")
    assert await sandbox.read("/app/new/file", max_bytes=5) == b"short"
    assert await sandbox.read("/no/such") is None
    with pytest.raises(ValueError, match="/app/new/file"):
        await sandbox.read("/app/new/file", max_bytes=4)


async def a_cleared_folder_is_empty(provider: SandboxProvider) -> None:
    sandbox = await provider.create(SPEC)
    await sandbox.write("/app/old/file", b"x")
    await sandbox.write("/app/older", b"x")
    await sandbox.clear("/app/old")
    assert await sandbox.read("/app/old/file") is None
    assert await sandbox.read("/app/older") == b"x"


async def commands_wait_while_frozen(provider: SandboxProvider) -> None:
    sandbox = await provider.create(SPEC)
    await sandbox.freeze()
    waiting = await begun(sandbox, "sleep 0", timeout_s=20)
    for _ in range(50):  # in which a command that does not wait would long be done
        assert await sandbox.probe()
        assert not waiting.done()
    await sandbox.thaw()
    assert (await waiting).exit_code == 0


async def a_commands_clock_stops_with_it(provider: SandboxProvider) -> None:
    sandbox = await provider.create(SPEC)
    running = await begun(sandbox, "sleep 0.5", timeout_s=1.5)
    await sandbox.freeze()
    await asyncio.sleep(1.6)  # longer than the limit: real time on real sandboxes, for it is their clock that is tried
    await sandbox.thaw()
    result = await running
    assert (result.exit_code, result.timed_out) == (0, False)


async def closing_ends_a_command_in_flight(provider: SandboxProvider) -> None:
    sandbox = await provider.create(SPEC)
    running = await begun(sandbox, "sleep 600", timeout_s=900)
    await sandbox.close()
    with pytest.raises(SandboxError):
        await running


async def a_cancelled_command_makes_room_for_the_next(provider: SandboxProvider) -> None:
    sandbox = await provider.create(SPEC)
    running = await begun(sandbox, "sleep 600", timeout_s=900)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await sandbox.exec("sleep 0", timeout_s=20)).exit_code == 0


async def a_frozen_sandbox_can_be_closed(provider: SandboxProvider) -> None:
    sandbox = await provider.create(SPEC)
    await sandbox.freeze()
    await sandbox.close()
    assert not await sandbox.probe()


async def closing_twice_and_using_it_after(provider: SandboxProvider) -> None:
    sandbox = await provider.create(SPEC)
    await sandbox.close()
    await sandbox.close()
    assert not await sandbox.probe()
    with pytest.raises(SandboxError, match="closed"):
        await sandbox.exec("sleep 0", timeout_s=20)
    with pytest.raises(SandboxError):
        await sandbox.write("/app/x", b"")


async def a_session_goes_on_and_loses_only_what_a_lost_shell_changed(provider: SandboxProvider) -> None:
    sandbox = await provider.create(SPEC)
    session = sandbox.session()
    assert session.state == b""
    first = await session.exec("sleep 0", timeout_s=20)
    assert (first.exit_code, first.shell_reset) == (0, False)
    state = session.state
    assert state
    lost = await session.exec("sleep 600", timeout_s=0.2)
    assert (lost.exit_code, lost.timed_out, lost.shell_reset) == (None, True, True)
    assert session.state == state
    again = await sandbox.session(state=state).exec("sleep 0", timeout_s=20)
    assert (again.exit_code, again.shell_reset) == (0, False)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


async def files_are_copied_out_once(provider: SandboxProvider) -> None:
    sandbox = await provider.create(SPEC)
    await sandbox.write("/app/file", b"data")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "file")
        assert (await sandbox.download("/app/file", target)).num_files == 1
        with pytest.raises(FileExistsError):
            await sandbox.download("/app/file", target)
        with pytest.raises(FileNotFoundError):
            await sandbox.download("/no/such", Path(folder, "other"))
        with pytest.raises(ValueError, match="/app/file"):
            await sandbox.download("/app/file", Path(folder, "other"), max_bytes=3)
        assert contents(Path(folder)) == {"file": b"data"}


async def nothing_is_left_to_kill(provider: SandboxProvider) -> None:
    sandbox = await provider.create(SPEC)
    await sandbox.exec("sleep 0", timeout_s=20)
    assert await sandbox.kill_all() == 0


async def sandboxes_do_not_share_files(provider: SandboxProvider) -> None:
    one, other = await asyncio.gather(provider.create(SPEC), provider.create(SPEC))
    assert one.id != other.id
    await one.write("/app/mine", b"secret")
    assert await other.read("/app/mine") is None


async def a_snapshot_makes_any_number_of_sandboxes_that_go_their_own_ways(provider: SandboxProvider) -> None:
    sandbox = await provider.create(SPEC)
    await sandbox.write("/app/then", b"1")
    snapshot = await sandbox.snapshot()
    assert snapshot.leftover_processes == 0
    await sandbox.write("/app/then", b"2")
    await sandbox.write("/app/later", b"2")
    one, other = await asyncio.gather(*(provider.create(SPEC, snapshot=snapshot) for _ in range(2)))
    await one.write("/app/mine", b"secret")
    assert [await fork.read("/app/then") for fork in (one, other, sandbox)] == [b"1", b"1", b"2"]
    assert [await fork.read("/app/later") for fork in (one, other)] == [None, None]
    assert (await other.read("/app/mine"), await sandbox.read("/app/mine")) == (None, None)
    assert (await one.exec("sleep 0", timeout_s=20)).exit_code == 0


async def snapshots_of_snapshots_hold_what_each_sandbox_did(provider: SandboxProvider) -> None:
    sandbox = await provider.create(SPEC)
    for generation in range(4):
        await sandbox.write(f"/app/{generation}", b"x")
        await sandbox.write("/app/latest", str(generation).encode())
        snapshot = await sandbox.snapshot()
        await sandbox.close()
        sandbox = await provider.create(SPEC, snapshot=snapshot)
        await snapshot.release()
    assert [await sandbox.read(f"/app/{generation}") for generation in range(4)] == [b"x"] * 4
    assert await sandbox.read("/app/latest") == b"3"


async def a_snapshot_outlives_its_sandbox_until_it_is_released(provider: SandboxProvider) -> None:
    sandbox = await provider.create(SPEC)
    await sandbox.write("/app/file", b"x")
    snapshot = await sandbox.snapshot()
    await sandbox.close()
    fork = await provider.create(SPEC, snapshot=snapshot)
    await snapshot.release()
    await snapshot.release()
    assert await fork.read("/app/file") == b"x"
    with pytest.raises(SandboxError, match="released"):
        await provider.create(SPEC, snapshot=snapshot)


async def a_snapshot_says_what_ran_and_lets_it_run_on(provider: SandboxProvider) -> None:
    sandbox = await provider.create(SPEC)
    running = asyncio.create_task(sandbox.exec("sleep 1", timeout_s=20))
    await asyncio.sleep(0.2)
    snapshot = await sandbox.snapshot()
    assert snapshot.leftover_processes >= 1
    assert (await running).exit_code == 0
    assert await (await provider.create(SPEC, snapshot=snapshot)).kill_all() == 0


async def a_frozen_sandbox_stays_so_through_a_snapshot(provider: SandboxProvider) -> None:
    sandbox = await provider.create(SPEC)
    await sandbox.freeze()
    await sandbox.write("/app/file", b"x")
    snapshot = await sandbox.snapshot()
    waiting = asyncio.create_task(sandbox.exec("sleep 0", timeout_s=20))
    assert await (await provider.create(SPEC, snapshot=snapshot)).read("/app/file") == b"x"
    assert not waiting.done()
    await sandbox.thaw()
    assert (await waiting).exit_code == 0


async def a_sandbox_that_ended_makes_no_snapshot(provider: SandboxProvider) -> None:
    sandbox = await provider.create(SPEC)
    await sandbox.close()
    with pytest.raises(SandboxError):
        await sandbox.snapshot()


async def one_that_was_started_for_nobody_is_handed_out_later(provider: SandboxProvider) -> None:
    sandbox = await provider.create(SPEC)
    await sandbox.assign("g000000.m000.a00")
    assert (await sandbox.exec("sleep 0.01", timeout_s=20)).exit_code == 0
    await sandbox.close()
    dead = await provider.create(SPEC)
    await dead.close()
    with pytest.raises(SandboxError):
        await dead.assign("g000000.m001.a00")


async def there_is_room_until_it_is_full(provider: SandboxProvider) -> None:
    room = provider.room
    assert room > 0
    sandbox = await provider.create(SPEC)
    assert provider.room <= room
    await sandbox.close()


async def closing_the_provider_closes_its_sandboxes(provider: SandboxProvider) -> None:
    sandboxes = [await provider.create(SPEC) for _ in range(3)]
    await provider.close()
    await provider.close()
    assert [await sandbox.probe() for sandbox in sandboxes] == [False] * 3
    with pytest.raises(SandboxError, match="closed"):
        await provider.create(SPEC)


SNAPSHOT_CHECKS: list[SandboxCheck] = [
    a_snapshot_makes_any_number_of_sandboxes_that_go_their_own_ways,
    snapshots_of_snapshots_hold_what_each_sandbox_did,
    a_snapshot_outlives_its_sandbox_until_it_is_released,
    a_snapshot_says_what_ran_and_lets_it_run_on,
    a_frozen_sandbox_stays_so_through_a_snapshot,
    a_sandbox_that_ended_makes_no_snapshot,
]

SEVERAL_CHECKS: list[SandboxCheck] = [
    sandboxes_do_not_share_files,
    closing_the_provider_closes_its_sandboxes,
]
"""Of providers that have more than one sandbox at a time."""

SANDBOX_CHECKS: list[SandboxCheck] = [
    a_command_that_ends_has_its_exit_code,
    a_timeout_is_told_and_leaves_the_sandbox_usable,
    files_go_in_and_out,
    a_cleared_folder_is_empty,
    commands_wait_while_frozen,
    a_commands_clock_stops_with_it,
    closing_ends_a_command_in_flight,
    a_cancelled_command_makes_room_for_the_next,
    a_frozen_sandbox_can_be_closed,
    closing_twice_and_using_it_after,
    a_session_goes_on_and_loses_only_what_a_lost_shell_changed,
    files_are_copied_out_once,
    nothing_is_left_to_kill,
    one_that_was_started_for_nobody_is_handed_out_later,
    there_is_room_until_it_is_full,
    *SEVERAL_CHECKS,
    *SNAPSHOT_CHECKS,
]
