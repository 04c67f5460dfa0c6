"""Whole episodes in real sandboxes: what an agent does counts, what is done to its sandbox does not."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.inference.engine import FinishReason, Generation, SamplingParams
from agentrl.rollout.active_time import ActiveTime
from agentrl.rollout.attempt import EpisodeSpec
from agentrl.rollout.chat import Message, Rendered
from agentrl.rollout.config import AgentConfig, ToolFormat
from agentrl.rollout.edges import TurnRecord
from agentrl.rollout.episode import EpisodeResult, EpisodeRunner
from agentrl.rollout.hold import Hold
from agentrl.rollout.verdict import Cause, Verdict
from agentrl.sandbox.bubblewrap import BubblewrapProvider
from agentrl.sandbox.death import Death
from agentrl.tasks.folders import load_task
from tests.fixtures.public_style import STEPS, write_folder
from tests.fixtures.sandboxes import SMALL, bubblewrap, until
from tests.fixtures.task_folders import make_task
from tests.integration.test_sandbox_faults import first_process, processes_like

JUDGE = """\
#!/bin/sh
reward=0
[ "$(cat answer)" = 42 ] && reward=1
echo "$reward" > /logs/verifier/reward.txt
"""


class Alphabet:
    """A `ChatFormat` in which every character is an id."""

    end_id = 0
    stop_ids = (0,)

    def render(
        self, messages: Sequence[Message], *, after: str | None = "", known: int = 0, tools: object = ()
    ) -> Rendered:
        return Rendered(
            ids=[ord(character) for message in messages[known:] for character in message.content], text=None
        )

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        return "".join(chr(number) for number in ids if number)


class Script:
    """A sampler that says prepared commands, then `done`."""

    def __init__(self, *commands: str) -> None:
        self._commands = [*commands, "done"]

    async def sample(
        self, episode: str, rid: str, ids: list[int], params: SamplingParams, hold: Hold | None = None
    ) -> Generation:
        said = [*map(ord, self._commands.pop(0) if len(self._commands) > 1 else "done"), 0]
        return Generation(ids=said, logprobs=[-1.0] * len(said), finish=FinishReason.STOP, versions=[0] * len(said))

    def forget(self, episode: str) -> None:
        return


class Records:
    def __init__(self) -> None:
        self.turns: list[TurnRecord] = []

    def record_turn(self, record: TurnRecord) -> None:
        self.turns.append(record)


async def act(
    provider: BubblewrapProvider, folder: Path, *commands: str, tool_timeout_s: float = 10.0
) -> EpisodeResult:
    agent = AgentConfig(
        format=ToolFormat.line,
        max_turns=6,
        max_turn_tokens=2000,
        max_episode_tokens=20000,
        tool_timeout_s=tool_timeout_s,
    )
    runner = EpisodeRunner(
        agent=agent,
        chat=Alphabet(),
        sampler=Script(*commands),
        provider=provider,
        recorder=Records(),
        active_time=ActiveTime(),
    )
    return await runner.run(EpisodeSpec(episode="g0.m0.a0", group="g0", task=load_task(folder), seed=0))


@pytest.mark.parametrize(
    ("commands", "verdict", "cause", "counted"),
    [
        (["echo 42 > answer"], Verdict.SUCCESS, Cause.REWARDED, {}),
        (["while :; do :; done"], Verdict.MODEL_FAILURE, Cause.UNREWARDED, {"num_timed_out": 1}),
        (["f() { f | f & }; f; sleep 9"], Verdict.MODEL_FAILURE, Cause.UNREWARDED, {}),
        (
            ["perl -e 'my @a; push @a, q(x) x 8_000_000 while 1'"],
            Verdict.MODEL_FAILURE,
            Cause.UNREWARDED,
            {"num_oom": 1, "num_signalled": 1},
        ),
        (["for d in /app /tests /logs /; do head -c 90M /dev/zero > $d/x; done"], Verdict.MODEL_FAILURE, None, {}),
        (["kill -9 $$"], Verdict.MODEL_FAILURE, Cause.UNREWARDED, {"num_signalled": 1}),
        (["kill -9 1; kill -9 -1", "echo 42 > answer"], Verdict.SUCCESS, Cause.REWARDED, {}),
        (["rm -rf /tests; echo 1 > /logs/verifier/reward.txt"], Verdict.MODEL_FAILURE, Cause.UNREWARDED, {}),
        # Without a control this would be an escape: `cat answer` waits for ever, and so does the verifier.
        (["mkfifo answer"], Verdict.MODEL_FAILURE, Cause.VERIFIER_BROKEN_BY_AGENT, {}),
    ],
)
async def test_what_the_agent_does_counts(
    tmp_path: Path, commands: list[str], verdict: Verdict, cause: Cause | None, counted: dict[str, int]
) -> None:
    toml = "[verifier]\ntimeout_sec = 2\n"
    folder = make_task(tmp_path / "task", test=JUDGE, toml=toml, dockerfile="FROM x\nWORKDIR /app\n")
    async with bubblewrap(tmp_path / "state") as provider:
        result = await act(provider, folder, *commands, tool_timeout_s=2.0)
        if provider.limits_by == "rlimits":
            counted = {}
    assert (result.verdict, result.cause) == (verdict, cause or result.cause), result.evidence
    assert result.trajectory is not None and result.trajectory.reward == (verdict is Verdict.SUCCESS)
    found = vars(result.evidence.commands)
    assert {name: found[name] for name in counted} == counted


async def test_a_verifier_that_is_broken_by_itself_is_not_the_agents_doing(tmp_path: Path) -> None:
    folder = make_task(tmp_path / "task", test="#!/bin/sh\nexit 3\n")
    async with bubblewrap(tmp_path / "state") as provider:
        result = await act(provider, folder, "true")
    assert (result.verdict, result.cause) == (Verdict.UNCERTAIN, Cause.VERIFIER_NO_REWARD)
    assert result.evidence.control is not None and result.evidence.control.problem == "missing"


async def test_a_sandbox_killed_from_outside_is_told_apart(tmp_path: Path) -> None:
    folder = make_task(tmp_path / "task", test=JUDGE)
    async with bubblewrap(tmp_path / "state") as provider:
        running = asyncio.create_task(act(provider, folder, "kill -9 1", "sleep 731.25"))

        async def there() -> list[int]:
            return processes_like("sleep 731.25")

        await until(there)
        os.kill(first_process(processes_like("sleep 731.25")[0]), signal.SIGKILL)
        result = await running
    assert (result.verdict, result.cause) == (Verdict.INFRA_FAILURE, Cause.SANDBOX_KILLED)
    assert (result.evidence.death, result.evidence.running) == (Death.KILLED, "sleep 731.25")
    assert result.trajectory is None


async def test_a_sandbox_that_outlives_its_lifetime_is_told_apart(tmp_path: Path) -> None:
    folder = make_task(tmp_path / "task", test=JUDGE)
    async with bubblewrap(tmp_path / "state", config=replace(SMALL, lifetime_s=1.0)) as provider:
        result = await act(provider, folder, "sleep 60", tool_timeout_s=50.0)
    assert (result.verdict, result.cause) == (Verdict.INFRA_FAILURE, Cause.SANDBOX_EXPIRED)


async def test_a_task_of_several_steps_is_told_and_graded_step_by_step(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "task", STEPS)
    async with bubblewrap(tmp_path / "state") as provider:
        whole = await act(provider, folder, "echo one > one.txt", "done", "cat hint.txt > two.txt")
        half = await act(provider, folder, "echo one > one.txt", "done", "true")
        none = await act(provider, folder, "true")
    scored = [[(score.step, score.reward) for score in result.evidence.steps] for result in (whole, half, none)]
    assert scored == [[("first", 1.0), ("second", 1.0)], [("first", 1.0), ("second", 0.0)], [("first", 0.0)]]
    rewards = [result.trajectory.reward for result in (whole, half, none) if result.trajectory]
    assert rewards == [1.0, 0.5, 0.0]
    assert whole.trajectory is not None
    told = Alphabet().decode(whole.trajectory.ids_array().tolist())
    assert told.index("Write one") < told.index("Now write what is in hint.txt")
