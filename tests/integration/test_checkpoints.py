"""After its sandbox was killed, an episode goes on from its last snapshot: the same tokens, the same files."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.inference.engine import Generation, SamplingParams
from agentrl.rollout.active_time import ActiveTime
from agentrl.rollout.attempt import EpisodeSpec
from agentrl.rollout.config import AgentConfig, Shell, ToolFormat
from agentrl.rollout.episode import EpisodeRunner
from agentrl.rollout.forks import GroupForks
from agentrl.rollout.hold import Hold
from agentrl.rollout.verdict import Cause, Verdict
from agentrl.tasks.folders import load_task
from tests.fixtures.sandboxes import bubblewrap, until
from tests.fixtures.task_folders import make_task
from tests.integration.test_evidence import Alphabet, Records, Script
from tests.integration.test_sandbox_faults import first_process, processes_like

JUDGE = '#!/bin/sh\n[ "$(cat log)" = "one two" ] && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n'


class Remembering(Script):
    """A script that keeps what it was asked with."""

    def __init__(self, *commands: str) -> None:
        super().__init__(*commands)
        self.asked: list[tuple[str, list[int]]] = []

    async def sample(
        self, episode: str, rid: str, ids: list[int], params: SamplingParams, hold: Hold | None = None
    ) -> Generation:
        self.asked.append((rid, list(ids)))
        return await super().sample(episode, rid, ids, params, hold)


@pytest.mark.parametrize("shell", Shell)
async def test_a_killed_episode_goes_on_from_its_last_turn(tmp_path: Path, shell: Shell) -> None:
    task = load_task(make_task(tmp_path / "task", test=JUDGE, dockerfile="FROM x\nWORKDIR /app\n"))
    agent = AgentConfig(
        format=ToolFormat.line,
        shell=shell,
        max_turns=8,
        max_turn_tokens=500,
        max_episode_tokens=9000,
        tool_timeout_s=60.0,
    )
    script = Remembering("printf one > log", "sleep 733.5", "printf ' two' >> log")
    records = Records()
    spec = EpisodeSpec(episode="g0.m0.a0", group="g0", task=task, seed=0)
    async with bubblewrap(tmp_path / "state") as provider:
        assert provider.capabilities.snapshot
        runner = EpisodeRunner(
            agent=agent,
            chat=Alphabet(),
            sampler=script,
            provider=provider,
            recorder=records,
            active_time=ActiveTime(),
            snapshot_every_turns=1,
        )
        running = asyncio.create_task(runner.run(spec))

        async def there() -> list[int]:
            return processes_like("sleep 733.5")

        await until(there)
        os.kill(first_process(processes_like("sleep 733.5")[0]), signal.SIGKILL)
        lost = await running
        assert (lost.verdict, lost.cause, lost.num_turns) == (Verdict.INFRA_FAILURE, Cause.SANDBOX_KILLED, 1)
        again = await runner.run(replace(spec, episode="g0.m0.a1"))
    assert (again.verdict, again.evidence.resumed_turns) == (Verdict.SUCCESS, 1)
    before, after = script.asked[1], script.asked[2]
    assert (before[0], after[0]) == ("g0.m0.a0.t001.s000", "g0.m0.a1.t001.s000")
    assert before[1] == after[1]
    mine = [record for record in records.turns if record.episode == "g0.m0.a1"]
    assert [record.turn for record in mine] == [0, 1, 2]
    assert again.trajectory is not None
    assert b"".join(record.segment.ids for record in mine) == again.trajectory.ids


async def test_the_members_of_a_group_are_forks_of_the_first(tmp_path: Path) -> None:
    """They begin as it began, and none sees what another does."""
    task = load_task(make_task(tmp_path / "task", test=JUDGE, dockerfile="FROM x\nWORKDIR /app\n"))
    async with bubblewrap(tmp_path / "state") as provider:
        forks = GroupForks(provider)
        first = await forks.create("g0", replace(task.spec, owner="g0.m0.a0"))
        await first.exec("echo mine > own", timeout_s=20)
        second, other = await forks.create("g0", task.spec), await forks.create("g1", task.spec)
        for sandbox in (second, other):
            assert await sandbox.read("/app/own") is None
            assert (await sandbox.exec("pwd", timeout_s=20)).stdout == b"/app\n"
        assert (await first.exec("cat own", timeout_s=20)).stdout == b"mine\n"
        await first.close()
        third = await forks.create("g0", task.spec)
        assert (await third.exec("echo 1 > x && cat x", timeout_s=20)).stdout == b"1\n"
