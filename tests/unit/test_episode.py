"""The agent loop: ids are appended, budgets end it, failures become verdicts, every turn is recorded first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.errors import EngineError, EngineRequestError, SandboxError
from agentrl.inference.engine import FinishReason, Generation, SamplingParams
from agentrl.rollout.active_time import ActiveTime
from agentrl.rollout.attempt import EpisodeSpec
from agentrl.rollout.chat import Chat, Message, template_environment
from agentrl.rollout.config import AgentConfig, OnBreak, ToolFormat
from agentrl.rollout.edges import TurnRecord
from agentrl.rollout.episode import EpisodeResult, EpisodeRunner
from agentrl.rollout.evidence import End
from agentrl.rollout.speaking import request_seed
from agentrl.rollout.verdict import Cause, Verdict
from agentrl.sandbox.provider import ExecResult, Image, SandboxSpec
from agentrl.simulation.instant import InstantProvider, InstantSandbox
from agentrl.simulation.toy_chat import TEMPLATE, toy_chat
from agentrl.tasks.task import Task

Answer = Generation | Exception


class Script:
    """A sampler that gives prepared answers and remembers what it was asked."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, list[int], SamplingParams]] = []
        self.forgotten: list[str] = []

    async def sample(
        self, episode: str, rid: str, ids: list[int], params: SamplingParams, hold: object = None
    ) -> Generation:
        self.asked.append((rid, list(ids), params))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def forget(self, episode: str) -> None:
        self.forgotten.append(episode)


class Records:
    def __init__(self) -> None:
        self.turns: list[TurnRecord] = []

    def record_turn(self, record: TurnRecord) -> None:
        self.turns.append(record)


CHAT = toy_chat()


def says(text: str, *, version: int = 0, finish: FinishReason = FinishReason.STOP, end: bool = True) -> Generation:
    ids = CHAT.encode(text) + ([CHAT.end_id] if end else [])
    return Generation(ids=ids, logprobs=[-0.5] * len(ids), versions=[version] * len(ids), finish=finish)


def make_task(tmp_path: Path) -> Task:
    (tmp_path / "tests").mkdir(exist_ok=True)
    (tmp_path / "tests" / "test.sh").write_text("true\n")
    return Task(name="t", folder=tmp_path, instruction="do it", spec=SandboxSpec(image=Image()))


async def act(
    tmp_path: Path,
    *answers: Answer,
    provider: Any = None,
    records: Records | None = None,
    chat: Chat = CHAT,
    **agent: Any,
) -> tuple[EpisodeResult, Script]:
    script = Script(*answers)
    settings = {"format": ToolFormat.line, "max_turns": 4, "max_turn_tokens": 8, "max_episode_tokens": 100, **agent}
    runner = EpisodeRunner(
        agent=AgentConfig(**settings),
        chat=chat,
        sampler=script,
        provider=provider or InstantProvider(output=b"note\n"),
        recorder=records or Records(),
        active_time=ActiveTime(),
    )
    spec = EpisodeSpec(episode="g0.m0.a0", group="g0", task=make_task(tmp_path), seed=3)
    return await runner.run(spec), script


async def test_trajectory_is_prompt_messages_and_observations_in_the_models_own_ids(tmp_path: Path) -> None:
    result, _ = await act(tmp_path, says("cat note"), says("done", version=1))
    assert (result.verdict, result.cause, result.evidence.end) == (Verdict.SUCCESS, Cause.REWARDED, End.FINISHED)
    trajectory = result.trajectory
    assert trajectory is not None
    prompt = CHAT.prompt([Message("user", "do it")])
    observed = CHAT.bridge("user", "note")
    first, second = says("cat note").ids, says("done").ids
    assert trajectory.ids_array().tolist() == prompt + first + observed + second
    mask = [0] * len(prompt) + [1] * len(first) + [0] * len(observed) + [1] * len(second)
    assert trajectory.mask_array().tolist() == mask
    versions = [-1] * len(prompt) + [0] * len(first) + [-1] * len(observed) + [1] * len(second)
    assert trajectory.versions_array().tolist() == versions
    assert np.all(trajectory.logprobs_array()[np.array(mask) == 1] == -0.5)
    assert trajectory.oldest_version == 0
    assert trajectory.num_turns == 2


async def test_each_turn_asks_with_everything_so_far_and_a_seed_of_its_own(tmp_path: Path) -> None:
    _, script = await act(tmp_path, says("ls"), says("done"))
    (rid0, ids0, params0), (rid1, ids1, params1) = script.asked
    assert (rid0, rid1) == ("g0.m0.a0.t000.s000", "g0.m0.a0.t001.s000")
    assert ids1[: len(ids0)] == ids0
    assert params0.seed == request_seed(3, rid0) != params1.seed
    assert set(script.forgotten) == {"g0.m0.a0"}


async def test_message_cut_by_a_suspension_goes_on_under_the_next_version(tmp_path: Path) -> None:
    half = says("cat", end=False, finish=FinishReason.ABORT)
    nothing = Generation(ids=[], logprobs=[], versions=[], finish=FinishReason.ABORT)
    result, script = await act(tmp_path, nothing, half, says("note", version=1), says("done", version=1))
    assert result.trajectory is not None
    versions = result.trajectory.versions_array()
    assert versions[versions >= 0].tolist() == [0, 1, 1, 1, 1]
    assert [rid for rid, _, _ in script.asked[:3]] == [f"g0.m0.a0.t000.s00{i}" for i in range(3)]
    assert script.asked[2][2].max_new_tokens == 7
    assert script.asked[2][1][-1:] == half.ids


async def test_every_turn_is_recorded_with_what_it_appended(tmp_path: Path) -> None:
    records = Records()
    result, _ = await act(tmp_path, says("ls"), says("done"), records=records)
    assert [(t.turn, t.command, t.observation) for t in records.turns] == [(0, "ls", "note"), (1, None, None)]
    assert result.trajectory is not None
    assert b"".join(t.segment.ids for t in records.turns) == result.trajectory.ids


@pytest.mark.parametrize(
    ("agent", "answers", "end"),
    [
        ({"max_turns": 2}, [says("ls"), says("ls")], End.TURN_BUDGET),
        ({"max_episode_tokens": 9}, [says("ls")], End.TOKEN_BUDGET),
        ({"episode_timeout_s": 1e-9}, [], End.TIME_BUDGET),
    ],
)
async def test_budget_ends_the_episode_and_its_state_is_graded(
    tmp_path: Path, agent: dict[str, Any], answers: list[Answer], end: End
) -> None:
    result, _ = await act(tmp_path, *answers, **agent)
    assert result.evidence.end is end
    assert result.verdict is Verdict.SUCCESS


async def test_trajectory_never_exceeds_its_token_budget(tmp_path: Path) -> None:
    result, script = await act(tmp_path, says("ls"), says("ls"), max_episode_tokens=18)
    assert result.num_tokens <= 18
    assert all(len(ids) + params.max_new_tokens <= 18 for _, ids, params in script.asked)


async def test_message_cut_at_its_token_limit_runs_nothing_and_is_closed(tmp_path: Path) -> None:
    records = Records()
    cut = says("cat cat", end=False, finish=FinishReason.LENGTH)
    result, script = await act(tmp_path, cut, says("done"), records=records)
    assert records.turns[0].command is None
    assert script.asked[1][1][len(script.asked[0][1]) + 2] == CHAT.end_id
    assert result.evidence.end is End.FINISHED


async def test_reward_below_one_is_the_models_failure(tmp_path: Path) -> None:
    result, _ = await act(tmp_path, says("done"), provider=InstantProvider(reward=b"0.5"))
    assert (result.verdict, result.trajectory and result.trajectory.reward) == (Verdict.MODEL_FAILURE, 0.5)


class BrokenProvider(InstantProvider):
    """Sandboxes that fail where a test wants it."""

    def __init__(self, *, start: bool = True, fail: Callable[[str], bool] = lambda _: False, **options: Any) -> None:
        super().__init__(**options)
        self._starts = start
        self._fail = fail
        self.made: list[InstantSandbox] = []

    async def create(self, spec: SandboxSpec, **options: Any) -> InstantSandbox:
        if not self._starts:
            raise SandboxError("no room")
        fail = self._fail

        class Broken(InstantSandbox):
            async def exec(self, command: str | list[str], **options: Any) -> ExecResult:
                if fail(str(command)):
                    self.alive = False
                return await super().exec(command, **options)

        made = Broken("broken", output=b"note\n", reward=self._reward)
        self.made.append(made)
        return made


@pytest.mark.parametrize(
    ("provider", "cause"),
    [
        (BrokenProvider(start=False), Cause.SANDBOX_START),
        (BrokenProvider(fail=lambda c: c == "ls"), Cause.SANDBOX_LOST),
        (BrokenProvider(fail=lambda c: "test.sh" in c), Cause.SANDBOX_LOST_IN_VERIFIER),
    ],
)
async def test_lost_sandbox_is_never_a_reward(tmp_path: Path, provider: BrokenProvider, cause: Cause) -> None:
    result, _ = await act(tmp_path, says("ls"), says("done"), provider=provider)
    assert (result.verdict, result.cause, result.trajectory) == (Verdict.INFRA_FAILURE, cause, None)


async def test_lost_engine_is_never_a_reward(tmp_path: Path) -> None:
    result, _ = await act(tmp_path, says("ls"), EngineError("gone"))
    assert (result.verdict, result.cause, result.trajectory) == (Verdict.INFRA_FAILURE, Cause.ENGINE_LOST, None)


async def test_refused_request_is_uncertain(tmp_path: Path) -> None:
    result, _ = await act(tmp_path, EngineRequestError("too long"))
    assert (result.verdict, result.cause) == (Verdict.UNCERTAIN, Cause.ENGINE_REFUSED)


@pytest.mark.parametrize("reward", [b"", b"nan", b"inf", b"yes"])
async def test_unreadable_reward_in_a_healthy_sandbox_is_uncertain(tmp_path: Path, reward: bytes) -> None:
    result, _ = await act(tmp_path, says("done"), provider=InstantProvider(reward=reward))
    assert (result.verdict, result.cause) == (Verdict.UNCERTAIN, Cause.VERIFIER_NO_REWARD)


async def test_cancelled_episode_closes_its_sandbox(tmp_path: Path) -> None:
    provider = BrokenProvider()

    class Never(Script):
        async def sample(
            self, episode: str, rid: str, ids: list[int], params: SamplingParams, hold: object = None
        ) -> Generation:
            reached.set()
            await asyncio.Event().wait()
            raise AssertionError

    reached = asyncio.Event()
    runner = EpisodeRunner(
        agent=AgentConfig(format=ToolFormat.line),
        chat=CHAT,
        sampler=Never(),
        provider=provider,
        recorder=Records(),
        active_time=ActiveTime(),
    )
    running = asyncio.create_task(runner.run(EpisodeSpec(episode="e", group="g", task=make_task(tmp_path), seed=0)))
    await reached.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not provider.made[0].alive


REWRITING = TEMPLATE.replace("{{ m.content }}", "{{ m.content if loop.last else m.content.split('note')[-1] }}")


@pytest.mark.parametrize(("on_break", "num"), [(OnBreak.branch, 2), (OnBreak.drop, 1)])
async def test_template_that_rewrites_what_was_said_makes_an_episode_of_several_sequences(
    tmp_path: Path, on_break: OnBreak, num: int
) -> None:
    chat = Chat(CHAT._template_tokenizer, template_environment().from_string(REWRITING), {}, set())
    records = Records()
    result, script = await act(tmp_path, says("ls note"), says("done"), chat=chat, records=records, on_break=on_break)
    prompt, second = (asked for _, asked, _ in script.asked)
    assert second == chat.prompt([Message("user", "do it"), Message("assistant", ""), Message("user", "note")])
    assert second[: len(prompt)] == prompt
    assert result.trajectory is not None
    sequences = result.trajectory.sequences()
    assert len(sequences) == num
    assert sequences[-1].ids_array().tolist() == second + says("done").ids
    seen = result.evidence.sequences
    assert (seen.num, seen.template_breaks) == (2, 1)
    assert seen.dropped_tokens == (3 if on_break is OnBreak.drop else 0)
    assert [turn.segment.sequence for turn in records.turns] == [0, 1]
