"""The warm pool over real sandboxes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from agentrl.errors import SandboxError
from agentrl.sandbox.provider import SandboxSpec
from agentrl.sandbox.warm_pool import WarmPool
from tests.contracts.sandbox import SANDBOX_CHECKS, SandboxCheck
from tests.fixtures.sandboxes import SMALL, SPEC, bubblewrap, read_record, records, until

CONFIG = replace(SMALL, warm_max=4)


@asynccontextmanager
async def running(state_dir: Path, *, warm: int = 0) -> AsyncIterator[WarmPool]:
    """A pool with so many warm sandboxes; at its end nothing is left of them."""
    async with bubblewrap(state_dir, config=CONFIG) as provider:
        pool = WarmPool(provider, CONFIG, entropy=Random(0))
        task = asyncio.create_task(pool.run())
        pool.expect([(SPEC, warm)], due=warm)

        async def warmed() -> bool:
            return pool.figures().warm == warm

        try:
            await until(warmed)
            yield pool
        finally:
            await pool.close()
            await task


@pytest.mark.parametrize("check", SANDBOX_CHECKS, ids=lambda check: check.__name__)
async def test_it_keeps_a_providers_promises(check: SandboxCheck, tmp_path: Path) -> None:
    async with running(tmp_path / "state", warm=2) as pool:
        await check(pool)


async def test_warm_ones_are_handed_out_each_once(tmp_path: Path) -> None:
    async with running(tmp_path / "state", warm=3) as pool:
        pool.expect([], due=0)
        made = [await pool.create(replace(SPEC, owner=f"g000000.m{member:03d}.a00")) for member in range(3)]
        assert pool.figures().hit_rate == 1.0
        assert len({sandbox.id for sandbox in made}) == 3
        await made[0].write("/app/mine", b"secret")
        await made[0].close()
        another = await pool.create(SPEC)
        assert await another.read("/app/mine") is None
        assert (pool.figures().counts.hits, pool.figures().counts.misses) == (3, 1)
        with pytest.raises(SandboxError, match=r"of g000000\.m000\.a00"):
            await made[0].exec("true", timeout_s=20)


async def test_what_died_while_it_was_warm_is_replaced(tmp_path: Path) -> None:
    """With the supervisor all of them die."""
    async with running(tmp_path / "state", warm=2) as pool:
        (record,) = records(tmp_path / "state")
        os.kill(read_record(record)["supervisor"]["pid"], signal.SIGKILL)
        sandbox = await pool.create(SandboxSpec(image=SPEC.image, owner="g000000.m000.a00"))
        assert (await sandbox.exec("echo alive", timeout_s=20)).stdout == b"alive\n"
        assert pool.figures().counts.dead >= 1


async def test_the_lifetime_of_a_sandbox_stands_still_while_it_is_frozen(tmp_path: Path) -> None:
    async with bubblewrap(tmp_path / "state", config=replace(SMALL, lifetime_s=0.6)) as provider:
        sandbox = await provider.create(SPEC)
        await sandbox.freeze()
        await asyncio.sleep(0.8)
        assert await sandbox.probe()
        await sandbox.thaw()

        async def over() -> bool:
            return not await sandbox.probe()

        await until(over)
        with pytest.raises(SandboxError, match="lifetime"):
            await sandbox.exec("true", timeout_s=20)
