"""A harness as an agent: real processes and the `openai` client against the endpoint, commands in real sandboxes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agentrl.cluster.local import LocalCluster
from agentrl.errors import EngineError, SandboxError, UserError
from agentrl.inference.engine import FinishReason, Generation, SamplingParams
from agentrl.rollout.active_time import ActiveTime
from agentrl.rollout.attempt import EpisodeSpec
from agentrl.rollout.chat import Chat, template_environment
from agentrl.rollout.config import AgentConfig, HarnessConfig, OnBreak, ToolFormat
from agentrl.rollout.edges import TurnRecord
from agentrl.rollout.episode import EpisodeResult, EpisodeRunner
from agentrl.rollout.evidence import End
from agentrl.rollout.harness.agent import HarnessAgent, resolve
from agentrl.rollout.harness.endpoint import Endpoint
from agentrl.rollout.verdict import Cause, Verdict
from agentrl.sandbox.death import Death
from agentrl.sandbox.provider import ExecResult, SandboxProvider
from agentrl.simulation.instant import InstantProvider, InstantSandbox
from agentrl.tasks.folders import load_task
from agentrl.tasks.task import Task
from tests.fixtures.characters import character_chat
from tests.fixtures.sandboxes import bubblewrap
from tests.fixtures.task_folders import make_task
from tests.integration.test_evidence import JUDGE

MINI_PYTHON = Path(os.environ.get("AGENTRL_TEST_MINI", ".venv-mini-swe-agent/bin/python"))
BARE = """\
import json, os, sys, time, urllib.request, urllib.error
import agentrl_harness

model = os.environ["AGENTRL_MODEL"]
messages = [{"role": "user", "content": agentrl_harness.task()}]

def post(body, timeout=None):
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(url, data=json.dumps({"model": model, **body}).encode())
    return json.load(urllib.request.urlopen(request, timeout=timeout))["choices"][0]["message"]

def ask(into=messages, timeout=None, **more):
    answer = post({"messages": into, **more}, timeout)
    into.append({"role": "assistant", "content": answer["content"]})
    return answer["content"]
"""
"""A harness of the standard library alone: it starts in no time."""
OPENAI = """\
import json, os
from openai import OpenAI
import agentrl_harness

client = OpenAI(max_retries=0)
model = os.environ["AGENTRL_MODEL"]
messages = [{"role": "user", "content": agentrl_harness.task()}]
"""
LOOP = (
    BARE
    + """
while (command := ask()) != "done":
    done = agentrl_harness.execute(command)
    messages.append({"role": "user", "content": done["stdout"]})
"""
)
TOOLS = [
    {
        "type": "function",
        "function": {"name": "bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}},
    }
]
END = "<|im_end|>"
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "echo 42 > answer"}}\n</tool_call>'


class Book:
    def started(self, *, pid: int, start_ticks: int, role: str) -> None: ...

    def ended(self, *, pid: int, start_ticks: int) -> None: ...


@dataclass
class Policy:
    """Says prepared messages; an exception is raised."""

    chat: Chat
    says: list[str | Exception]
    asked: list[list[int]] = field(default_factory=list)
    params: list[SamplingParams] = field(default_factory=list)
    meanwhile: Callable[[], Any] = lambda: None

    async def sample(
        self, episode: str, rid: str, ids: list[int], params: SamplingParams, hold: object = None
    ) -> Generation:
        self.asked.append(list(ids))
        self.params.append(params)
        await asyncio.sleep(0)
        if (waited := self.meanwhile()) is not None:
            await waited
        said = self.says.pop(0)
        if isinstance(said, Exception):
            raise said
        text, _, cut = said.partition("|")  # a bar: the engine is suspended here
        end = [] if cut else [self.chat.end_id]
        if cut:
            self.says.insert(0, cut)
        said_ids = self.chat.encode(text) + end
        finish = FinishReason.ABORT if cut else FinishReason.STOP
        versions = [len(self.asked)] * len(said_ids)
        return Generation(ids=said_ids, logprobs=[-0.5] * len(said_ids), versions=versions, finish=finish)

    def forget(self, episode: str) -> None:
        return


@dataclass
class Stage:
    """All that an episode with a harness needs."""

    folder: Path
    provider: SandboxProvider
    task: Task
    chat: Chat = field(default_factory=character_chat)
    turns: list[TurnRecord] = field(default_factory=list)
    policy: Policy | None = None

    def record_turn(self, record: TurnRecord) -> None:
        self.turns.append(record)

    async def play(
        self,
        program: str | None,
        *says: str | Exception,
        keep_alive_s: float = 15.0,
        meanwhile: Callable[[], Any] = lambda: None,
        arguments: Sequence[str] = (),
        **settings: Any,
    ) -> EpisodeResult:
        """One episode of a harness that is this program, or mini-swe-agent with further `arguments`."""
        budgets = {"max_turns": 6, "max_turn_tokens": 500, "max_episode_tokens": 4000, "episode_timeout_s": 60.0}
        command = self._mini(arguments) if program is None else self._script(program)
        agent = AgentConfig(harness=HarnessConfig(command=command), **{**budgets, **settings})
        self.policy = Policy(self.chat, list(says), meanwhile=meanwhile)
        endpoint = Endpoint(model="policy", tool_role=agent.observation_role, keep_alive_s=keep_alive_s)
        await endpoint.start()
        cluster = LocalCluster(Book())
        harness = HarnessAgent(
            agent,
            self.chat,
            self.policy,
            self,
            endpoint=endpoint,
            cluster=cluster,
            folder=self.folder / "work",
            logs=self.folder / "logs",
        )
        runner = EpisodeRunner(
            agent=agent,
            chat=self.chat,
            sampler=self.policy,
            provider=self.provider,
            recorder=self,
            active_time=ActiveTime(),
            harness=harness,
        )
        try:
            return await runner.run(EpisodeSpec(episode="g0.m0.a0", group="g0", task=self.task, seed=0))
        finally:
            await cluster.close(1.0)
            await endpoint.close()
            assert not list((self.folder / "work").iterdir()), "each process's folder goes with it"

    def _script(self, program: str) -> list[str]:
        script = self.folder / "harness.py"
        script.write_text(program)
        return [sys.executable, *([] if "openai" in program else ["-S"]), str(script)]

    def _mini(self, arguments: Sequence[str]) -> list[str]:
        return [str(MINI_PYTHON), "-m", "agentrl_harness", "mini", *arguments]

    def said(self, result: EpisodeResult) -> list[str]:
        """What was sampled, by sequence."""
        assert result.trajectory is not None
        parts = result.trajectory.sequences()
        return [self.chat.decode(p.ids_array()[p.mask_array() == 1].tolist(), special=True) for p in parts]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """Sandboxes that take no time and do nothing: what a harness meets at the endpoint."""
    folder = make_task(tmp_path / "task", test=JUDGE)
    return Stage(tmp_path, InstantProvider(output=b"seen\n"), load_task(folder))


@pytest.fixture
async def real(tmp_path: Path) -> AsyncIterator[Stage]:
    folder = make_task(tmp_path / "task", test=JUDGE, dockerfile="FROM x\nWORKDIR /app\n")
    async with bubblewrap(tmp_path / "state") as provider:
        yield Stage(tmp_path, provider, load_task(folder))


async def test_openai_client_solves_a_task_in_a_real_sandbox(real: Stage) -> None:
    program = (
        OPENAI
        + """
assert [one.id for one in client.models.list()] == [model]
while True:
    answer = client.chat.completions.create(model=model, messages=messages).choices[0].message
    if answer.content == "done":
        break
    messages.append(answer.model_dump(exclude_none=True))
    messages.append({"role": "user", "content": agentrl_harness.execute(answer.content)["stdout"]})
"""
    )
    result = await real.play(program, "echo 4|2 > answer", "cat answer", "done")
    assert (result.verdict, result.cause, result.evidence.end) == (Verdict.SUCCESS, Cause.REWARDED, End.FINISHED)
    assert [(t.turn, t.command, t.observation) for t in real.turns] == [
        (0, "echo 42 > answer", "(no output)"),
        (1, "cat answer", "42"),
        (2, None, None),
    ]
    assert result.num_turns == 3
    assert result.evidence.commands.num_run == 2


async def test_the_trajectory_is_the_engines_ids_with_their_versions_across_a_suspension(stage: Stage) -> None:
    result = await stage.play(LOOP, "ls |-l", "done")
    assert stage.policy is not None and result.trajectory is not None
    first, resumed, second = stage.policy.asked
    assert resumed == first + stage.chat.encode("ls ")
    ids = result.trajectory.ids_array().tolist()
    assert ids[: len(second)] == second
    mask = result.trajectory.mask_array()
    assert stage.chat.decode(result.trajectory.ids_array()[mask == 1].tolist()) == "ls -ldone"
    assert result.trajectory.versions_array()[mask == 1].tolist() == [1] * 3 + [2] * 3 + [3] * 5
    assert result.trajectory.starts == (0,)
    assert b"".join(turn.segment.ids for turn in stage.turns) == result.trajectory.ids


async def test_openai_client_streams_a_message_for_which_it_had_to_wait(stage: Stage) -> None:
    program = (
        OPENAI.replace("max_retries=0", "max_retries=0, timeout=1.0")
        + """
stream = client.chat.completions.create(
    model=model, messages=messages, stream=True, stream_options={"include_usage": True})
chunks = list(stream)
text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
assert text == "hello", text
assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
assert chunks[-1].usage.completion_tokens == 6, chunks[-1]
"""
    )
    result = await stage.play(program, "hello", keep_alive_s=0.2, meanwhile=lambda: asyncio.sleep(1.5))
    assert (result.verdict, result.evidence.harness and result.evidence.harness.exit_code) == (Verdict.SUCCESS, 0)


async def test_a_client_that_waits_for_the_trainer_is_kept_alive(stage: Stage) -> None:
    program = BARE + 'assert ask(timeout=1.0) == "first"'
    result = await stage.play(program, "first", keep_alive_s=0.2, meanwhile=lambda: asyncio.sleep(1.5))
    assert (result.verdict, result.evidence.harness and result.evidence.harness.num_answered) == (Verdict.SUCCESS, 1)


async def test_tool_calls_go_out_and_come_back_as_the_policy_wrote_them(real: Stage) -> None:
    program = (
        OPENAI
        + f"""
tools = {TOOLS!r}
answer = client.chat.completions.create(model=model, messages=messages, tools=tools).choices[0]
assert answer.finish_reason == "tool_calls" and answer.message.content == "I write."
(call,) = answer.message.tool_calls
done = agentrl_harness.execute(json.loads(call.function.arguments)["command"])
messages.append(answer.message.model_dump(exclude_none=True))
messages.append({{"role": "tool", "tool_call_id": call.id, "content": done["stdout"] or "nothing"}})
answer = client.chat.completions.create(model=model, messages=messages, tools=tools).choices[0]
assert answer.message.content == "It is written." and answer.finish_reason == "stop"
"""
    )
    result = await real.play(
        program, f"I write.\n{CALL}", "It is written.", format=ToolFormat.hermes, observation_role="tool"
    )
    assert result.verdict is Verdict.SUCCESS
    assert real.said(result) == [f"I write.\n{CALL}{END}It is written."]
    assert result.evidence.sequences.num == 1


@pytest.mark.parametrize(("on_break", "kept"), [(OnBreak.branch, [f"one{END}two", "three"]), (OnBreak.drop, ["three"])])
async def test_a_harness_that_edits_its_history_makes_another_sequence(
    stage: Stage, on_break: OnBreak, kept: list[str]
) -> None:
    program = (
        BARE
        + """
ask()
messages.append({"role": "user", "content": "more"})
ask()
messages[:] = [messages[0], {"role": "user", "content": "a summary"}]
ask()
"""
    )
    result = await stage.play(program, "one", "two", "three", on_break=on_break)
    assert stage.said(result) == kept
    seen = result.evidence.sequences
    assert (seen.num, seen.template_breaks, seen.history_breaks) == (2, 0, 1)
    assert seen.dropped_tokens == (0 if on_break is OnBreak.branch else len("onetwo") + 2)


async def test_two_conversations_of_one_harness_are_two_sequences(stage: Stage) -> None:
    program = (
        BARE
        + """
helper = [{"role": "user", "content": "help"}]
def both():
    for one in (messages, helper):
        ask(one)
        one.append({"role": "user", "content": "go on"})
both(); both()
"""
    )
    result = await stage.play(program, "a", "x", "b", "y")
    assert stage.said(result) == [f"a{END}b", f"x{END}y"]
    assert result.evidence.sequences.history_breaks == 1


@pytest.mark.parametrize(
    ("request_", "status", "problem"),
    [
        ({"n": 2}, 400, "n=2"),
        ({"stop": ["x"]}, 400, "stop"),
        ({"logprobs": True}, 400, "logprobs"),
        ({"tool_choice": "required"}, 400, "tool_choice"),
        ({"tools": TOOLS}, 400, "no tool calls"),
        ({"model": "gpt-9"}, 404, "no model"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, "no role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "content"),
        ({"max_tokens": 0}, 400, "max_tokens"),
    ],
)
async def test_what_cannot_be_done_is_refused_and_told(
    stage: Stage, request_: dict[str, Any], status: int, problem: str
) -> None:
    program = (
        BARE
        + f"""
try:
    post({{"messages": messages}} | json.loads({json.dumps(request_)!r}))
except urllib.error.HTTPError as error:
    assert error.code == {status}, error.code
    assert {problem!r} in json.load(error)["error"]["message"]
    ask()
"""
    )
    result = await stage.play(program, "done")
    seen = result.evidence.harness
    assert seen is not None and (seen.exit_code, seen.num_refused) == (0, 1)
    assert problem in (seen.refusal or "")


async def test_the_run_decides_how_tokens_are_sampled_and_the_harness_how_many_at_most(stage: Stage) -> None:
    result = await stage.play(BARE + "ask(temperature=0.1, top_p=0.5, max_tokens=7)", "done", temperature=0.8)
    assert result.verdict is Verdict.SUCCESS and stage.policy is not None
    (params,) = stage.policy.params
    assert (params.temperature, params.max_new_tokens) == (0.8, 7)


@pytest.mark.parametrize(
    ("settings", "end", "num_turns"),
    [
        ({"max_turns": 2}, End.TURN_BUDGET, 2),
        ({"max_episode_tokens": 80}, End.TOKEN_BUDGET, 2),
    ],
)
async def test_budgets_end_a_harness_and_the_state_is_graded(
    stage: Stage, settings: dict[str, Any], end: End, num_turns: int
) -> None:
    result = await stage.play(LOOP, *["ls -l"] * 9, **settings)
    assert (result.evidence.end, result.num_turns, result.cause) == (end, num_turns, Cause.REWARDED)
    assert [turn.command for turn in stage.turns] == ["ls -l"] * num_turns


async def test_a_harness_that_hangs_ends_with_the_time_of_its_episode(stage: Stage) -> None:
    result = await stage.play(BARE + "ask()\ntime.sleep(600)", "hello", episode_timeout_s=4.0)
    assert (result.evidence.end, result.cause) == (End.TIME_BUDGET, Cause.REWARDED)


@pytest.mark.parametrize(
    ("program", "verdict", "cause"),
    [
        ("raise SystemExit(3)", Verdict.INFRA_FAILURE, Cause.HARNESS_NOT_STARTED),
        ("", Verdict.INFRA_FAILURE, Cause.HARNESS_NOT_STARTED),
        (BARE + "ask()\nraise SystemExit(3)", Verdict.UNCERTAIN, Cause.HARNESS_CRASHED),
        (BARE + "ask()\nos.kill(os.getpid(), 9)", Verdict.INFRA_FAILURE, Cause.HARNESS_KILLED),
    ],
)
async def test_a_harness_that_fails_is_never_held_against_the_policy(
    stage: Stage, program: str, verdict: Verdict, cause: Cause
) -> None:
    result = await stage.play(f"{program}\n", "hello")
    assert (result.verdict, result.cause, result.trajectory) == (verdict, cause, None)


async def test_an_engine_that_is_lost_ends_the_episode_whatever_the_harness_makes_of_it(stage: Stage) -> None:
    result = await stage.play(BARE + "ask()\nask()", "hello", EngineError("no engine"))
    assert (result.verdict, result.cause) == (Verdict.INFRA_FAILURE, Cause.ENGINE_LOST)
    assert [turn.message for turn in stage.turns] == ["hello"]


class Killed(InstantSandbox):
    """Lost as soon as a command runs in it."""

    async def exec(self, command: str | list[str], **_: Any) -> ExecResult:
        raise SandboxError("gone", death=Death.KILLED)


async def test_a_sandbox_that_is_lost_ends_the_episode_whatever_the_harness_makes_of_it(stage: Stage) -> None:
    create = stage.provider.create

    async def broken(*args: Any, **more: Any) -> Any:
        sandbox = await create(*args, **more)
        sandbox.__class__ = Killed
        return sandbox

    stage.provider.create = broken  # type: ignore[method-assign]
    result = await stage.play(LOOP, "ls")
    assert (result.verdict, result.cause) == (Verdict.INFRA_FAILURE, Cause.SANDBOX_KILLED)


async def test_an_answer_that_nobody_is_there_for_leaves_nothing_behind(stage: Stage) -> None:
    program = (
        BARE
        + """
try:
    ask(timeout=0.5)
except TimeoutError:
    pass
ask()
"""
    )
    waits = iter([1.5])
    result = await stage.play(program, "lost", "heard", meanwhile=lambda: asyncio.sleep(next(waits, 0.0)))
    assert stage.said(result) == ["heard"]
    seen = result.evidence.harness
    assert seen is not None and (seen.num_answered, seen.num_unread) == (1, 1)


async def test_only_the_secret_of_a_running_episode_opens_the_endpoint(stage: Stage) -> None:
    endpoint = Endpoint(model="policy", tool_role="user")
    await endpoint.start()
    async with aiohttp.ClientSession() as client:
        for path in ("v1/chat/completions", "exec"):
            async with client.post(f"{endpoint._url}/guess/{path}", json={}) as response:
                assert response.status == 401
    await endpoint.close()


async def test_tools_that_the_template_does_not_know_are_refused(stage: Stage) -> None:
    stage.chat = replace_template(stage.chat, "{% for m in messages %}{{ m.role }}: {{ m.content }}<e>{% endfor %}a: ")
    program = BARE + f"ask(tools={TOOLS!r})"
    result = await stage.play(program, "hello", format=ToolFormat.hermes)
    assert result.cause is Cause.HARNESS_NOT_STARTED
    assert result.evidence.harness is not None and "does not know" in (result.evidence.harness.refusal or "")
    assert "HTTPError" in result.evidence.harness.log_tail


def replace_template(chat: Chat, template: str) -> Chat:
    return Chat(chat._template_tokenizer, template_environment().from_string(template), {}, set())


def test_a_program_that_is_not_there_is_a_users_mistake() -> None:
    with pytest.raises(UserError, match="no program no-such-harness"):
        resolve(["no-such-harness", "run"])


async def test_the_bridge_on_the_command_line_passes_on_output_and_exit_code(real: Stage) -> None:
    program = (
        BARE
        + """
import subprocess
ask()
run = [sys.executable, "-S", "-m", "agentrl_harness"]
assert subprocess.run([*run, "task"], capture_output=True, text=True).stdout.strip() == "Do it."
done = subprocess.run([*run, "exec", "echo 42 | tee answer; echo no >&2; exit 7"], capture_output=True, text=True)
assert (done.stdout, done.stderr, done.returncode) == ("42\\n", "no\\n", 7), done
"""
    )
    result = await real.play(program, "hello")
    assert result.verdict is Verdict.SUCCESS
