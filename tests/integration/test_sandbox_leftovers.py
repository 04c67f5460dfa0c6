"""Whatever dies, however suddenly: nothing of a run's sandboxes is left, its snapshots and builds included."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from agentrl.sandbox.bubblewrap import reap
from tests.fixtures.sandboxes import cgroups_of, read_record, records, until

_MARK = "sleep 630.5"
_OWNER = f"""
import asyncio, sys
from pathlib import Path
from agentrl.sandbox.bubblewrap import BubblewrapProvider
from agentrl.sandbox.config import SandboxConfig
from agentrl.sandbox.provider import Image, Run, SandboxSpec

async def main():
    provider = BubblewrapProvider(SandboxConfig(cache_dir=sys.argv[2]), state_dir=Path(sys.argv[1]))
    spec = SandboxSpec(image=Image())
    sandbox = await provider.create(spec)
    await sandbox.exec("echo x > /app/x", timeout_s=20)
    snapshot = await sandbox.snapshot()
    forks = [await provider.create(spec, snapshot=snapshot) for _ in range(3)]
    for fork in forks:
        await fork.exec("setsid -f {_MARK} >/dev/null 2>&1", timeout_s=20)
    await forks[0].snapshot()
    await forks[1].freeze()
    build = Run(argv=("sh", "-c", "echo x > /opt/x; {_MARK}"))
    building = asyncio.create_task(provider.prepare(Image(steps=(build,))))
    while not list(Path(sys.argv[2]).glob("layers/*/*.partial")):
        await asyncio.sleep(0.01)
    print("ready", flush=True)
    await building

asyncio.run(main())
"""


def left_of(state: Path, cache: Path) -> list[str]:
    """Processes, mounts and layers; control groups are asked for by their owner's pid."""
    found = [str(path) for path in cache.glob("layers/*/*") if path.name != "uses" or any(path.iterdir())]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            mounted = (process / "mountinfo").read_text()
        except OSError:
            continue
        if command.strip() == _MARK or str(state) in mounted:
            found.append(f"{process.name}: {command}")
    return found


@pytest.mark.parametrize("records_are_lost", [False, True])
@pytest.mark.parametrize("victims", ["owner", "supervisor", "both"])
async def test_nothing_is_left(tmp_path: Path, victims: str, records_are_lost: bool) -> None:
    state, cache = tmp_path / "state", tmp_path / "cache"
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _OWNER, str(state), str(cache), stdout=-1, stderr=asyncio.subprocess.DEVNULL
    )
    assert owner.stdout is not None and await owner.stdout.readline() == b"ready\n"
    (record,) = records(state)
    if victims != "owner":
        os.kill(read_record(record)["supervisor"]["pid"], signal.SIGKILL)
    if victims != "supervisor":
        owner.kill()
    await owner.wait()
    if records_are_lost:
        record.unlink(missing_ok=True)

    async def processes_are_gone() -> bool:
        return [name for name in left_of(state, cache) if not name.startswith(str(cache))] == []

    await until(processes_are_gone)
    assert reap(state, cache) == []
    assert cgroups_of(owner.pid) == [] and records(state) == [] and left_of(state, cache) == []
