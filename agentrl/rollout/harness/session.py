"""What one harness does in one episode: its questions to the policy, its commands, and the turns that these make.

One thing at a time: a question waits for a command that runs, and the other way round, so that a sandbox is never
frozen under a command because the policy has to wait for an engine.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from agentrl.clock import monotonic, wall
from agentrl.errors import EngineError, EngineRequestError, SandboxError, UserError
from agentrl.rollout.attempt import Attempt
from agentrl.rollout.chat import Chat, Message
from agentrl.rollout.config import AgentConfig, Shell
from agentrl.rollout.edges import Recorder, TurnRecord
from agentrl.rollout.evidence import End
from agentrl.rollout.harness.protocol import Answer, Asked, Key, Refused
from agentrl.rollout.observation import observe
from agentrl.rollout.speaking import Said, Speaker
from agentrl.rollout.tool_calls import reads_special
from agentrl.rollout.tool_formats import has_calls, read
from agentrl.rollout.watched import WatchedSandbox
from agentrl.sandbox.provider import ExecResult

log = logging.getLogger(__name__)

_MIN_TIMEOUT_S = 0.1


class SessionOver(Exception):
    """The episode has ended: nothing is answered any more."""


@dataclass(frozen=True, kw_only=True)
class _Ran:
    """A command that the harness had run."""

    command: str
    timeout_s: float
    result: ExecResult
    took_s: float


class Session:
    """One harness process's. `ended` is set when a budget, an engine or the sandbox ends it."""

    def __init__(
        self,
        attempt: Attempt,
        watched: WatchedSandbox,
        deadline: float,
        *,
        agent: AgentConfig,
        chat: Chat,
        speaker: Speaker,
        recorder: Recorder,
    ) -> None:
        self.token = secrets.token_urlsafe(24)
        """Names it to the endpoint."""
        self.ended: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self.num_refused = 0
        self.num_unread = 0
        """Answers that the harness was not there for any more; nothing of them is kept."""
        self.refusal: str | None = None
        """The last one."""
        self.ignored: set[str] = set()
        """What requests asked for that is the run's to decide."""
        self._attempt = attempt
        self._watched = watched
        self._deadline = deadline
        self._agent = agent
        self._chat = chat
        self._speaker = speaker
        self._recorder = recorder
        self._answers: dict[Key, list[Message]] = defaultdict(list)
        self._turn: TurnRecord | None = None
        """The one that is still open: what it has run is in `_ran`."""
        self._ran: list[_Ran] = []
        self._num_calls = 0
        self._lock = asyncio.Lock()
        self._busy: set[asyncio.Task[object]] = set()

    async def ask(self, asked: Asked, gone: Callable[[], bool]) -> Answer:
        """The policy's answer. If the harness is `gone` by then, it is as if it had not asked.

        Raises Refused, and SessionOver when the episode ends, now or before.
        """
        async with self._one_at_a_time():
            attempt = self._attempt
            self._check_budgets()
            tools = self._offered(asked)
            try:
                question = attempt.conversation.question(self._as_said(asked), tools)
            except UserError as error:
                raise Refused(str(error)) from error
            if len(question.ids) >= self._agent.max_episode_tokens:
                raise self._end(End.TOKEN_BUDGET)
            self._close_turn()
            began_at, began_wall, began = wall(), monotonic(), attempt.active_now()
            try:
                said = await self._speaker.speak(
                    attempt, question.ids, call=self._num_calls, max_tokens=asked.max_tokens
                )
            except (EngineError, EngineRequestError, SandboxError) as error:
                raise self._fail(error) from error
            self._num_calls += 1
            if gone():
                self.num_unread += 1
                raise SessionOver
            took_s = attempt.active_now() - began
            answer = self._answer(said, asked, len(question.ids))
            message = Message("assistant", answer.text)
            attempt.conversation.ask(question)
            attempt.conversation.say(said.generation, message, closed=said.closed)
            self._answers[answer.key].append(message)
            attempt.generation_s += took_s
            self._turn = TurnRecord(
                episode=attempt.spec.episode,
                turn=attempt.num_turns,
                began_at=began_at,
                message=answer.text,
                command=None,
                timeout_s=None,
                result=None,
                observation=None,
                segment=attempt.conversation.take_segment(),
                generation_s=took_s,
                tool_s=0.0,
                suspended_s=(monotonic() - began_wall) - took_s,
            )
            attempt.num_turns += 1
            return answer

    async def exec(self, command: str, timeout_s: float | None) -> ExecResult:
        """Run a command in the sandbox, for at most agent.tool_timeout_s. Raises SessionOver."""
        async with self._one_at_a_time():
            began = self._attempt.active_now()
            left_s = self._deadline - began
            if left_s <= 0:
                raise self._end(End.TIME_BUDGET)
            limit_s = max(min(timeout_s or left_s, self._agent.tool_timeout_s, left_s), _MIN_TIMEOUT_S)
            try:
                result = await self._watched.exec(command, timeout_s=limit_s)
            except SandboxError as error:
                raise self._fail(error) from error
            took_s = self._attempt.active_now() - began
            self._attempt.tool_s += took_s
            self._ran.append(_Ran(command=command, timeout_s=limit_s, result=result, took_s=took_s))
            return result

    async def close(self) -> None:
        """Nothing more is answered, what runs is cancelled, and the last turn is recorded."""
        if not self.ended.done():
            self.ended.set_result(End.FINISHED)
        elif not self.ended.cancelled():
            self.ended.exception()  # whoever waited for it has it
        for task in self._busy:
            task.cancel()
        await asyncio.gather(*self._busy, return_exceptions=True)
        self._close_turn(last=True)

    def refused(self, message: str) -> None:
        """A request could not be answered: the set-up's mistake, most likely."""
        self.num_refused += 1
        self.refusal = message

    # --- inside

    @asynccontextmanager
    async def _one_at_a_time(self) -> AsyncIterator[None]:
        """Within: alone, cancelled when the session closes. Raises SessionOver."""
        task = asyncio.current_task()
        assert task is not None
        self._busy.add(task)
        try:
            async with self._lock:
                if self.ended.done():
                    raise SessionOver
                yield
        finally:
            self._busy.discard(task)

    def _check_budgets(self) -> None:
        if self._attempt.num_turns >= self._agent.max_turns:
            raise self._end(End.TURN_BUDGET)
        if self._attempt.active_now() >= self._deadline:
            raise self._end(End.TIME_BUDGET)

    def _end(self, end: End) -> SessionOver:
        self.ended.set_result(end)
        return SessionOver()

    def _fail(self, error: Exception) -> SessionOver:
        if not self.ended.done():
            self.ended.set_exception(error)
        return SessionOver()

    def _offered(self, asked: Asked) -> Sequence[dict[str, object]]:
        if not asked.tools:
            return ()
        if not has_calls(self._agent.format):
            raise Refused(f"tools: agent.format={self._agent.format.name} has no tool calls; choose the model's format")
        if not self._chat.knows_tools():
            raise Refused("tools: the model's chat template does not know them")
        return asked.tools

    def _as_said(self, asked: Asked) -> list[Message]:
        """The messages, those of the policy as it said them: reasoning, calls and white space as they were."""
        seen: dict[Key, int] = defaultdict(int)
        messages = []
        for message, key in zip(asked.messages, asked.keys, strict=True):
            if key is not None and (same := self._answers.get(key)):
                messages.append(same[min(seen[key], len(same) - 1)])
                seen[key] += 1
            else:
                messages.append(message)
        return messages

    def _answer(self, said: Said, asked: Asked, num_prompt: int) -> Answer:
        ids = said.generation.ids
        text = self._chat.decode(ids, special=reads_special(self._agent.format, self._agent.reasoning))
        spoken = read(self._agent.format, text, reasoning=self._agent.reasoning, tools=asked.tools)
        calls = spoken.calls if asked.tools else ()
        content = spoken.content if asked.tools or not spoken.calls else text
        if spoken.problem is not None:
            content = spoken.content or text
        return Answer(
            text=self._chat.decode(ids, special=True),
            content=content,
            reasoning=spoken.reasoning if content is not text else "",
            calls=tuple((f"call_{self._num_calls:03d}{index:03d}", call) for index, call in enumerate(calls)),
            finish="length" if not said.complete else "tool_calls" if calls else "stop",
            num_prompt=num_prompt,
            num_sampled=len(ids),
        )

    def _close_turn(self, *, last: bool = False) -> None:
        """Write the open turn down, with what was run since. Commands before the first turn belong to it."""
        if self._turn is None:
            return
        ran, self._ran = self._ran, []
        turn, self._turn = self._turn, None
        shown = [observe(one.result, limit_chars=self._agent.observation_chars, timeout_s=one.timeout_s) for one in ran]
        self._recorder.record_turn(
            replace(
                turn,
                command=self._together([one.command for one in ran]) if ran else None,
                timeout_s=sum(one.timeout_s for one in ran) if ran else None,
                result=ran[-1].result if ran else None,
                observation="\n".join(shown) if ran or not last else None,
                tool_s=sum(one.took_s for one in ran),
            )
        )

    def _together(self, commands: list[str]) -> str:
        """One text that does what they did: in a shell each, unless they share a session."""
        if len(commands) == 1 or self._agent.shell is Shell.session:
            return "\n".join(commands)
        return "\n".join(f"(\n{command}\n)" for command in commands)
