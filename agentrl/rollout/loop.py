"""The built-in agent: the policy's messages name commands, and what these did is told to it.

Every finished turn is recorded before the next one begins.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from agentrl.clock import monotonic, wall
from agentrl.rollout.attempt import Attempt
from agentrl.rollout.chat import Message
from agentrl.rollout.config import AgentConfig
from agentrl.rollout.edges import ChatFormat, Recorder, Sampler, TurnRecord
from agentrl.rollout.evidence import End
from agentrl.rollout.observation import observe
from agentrl.rollout.speaking import Speaker
from agentrl.rollout.tool_calls import Command, Finished, Malformed, parse, reads_special
from agentrl.rollout.watched import WatchedSandbox
from agentrl.sandbox.provider import ExecResult
from agentrl.tasks.task import Step

AfterTurn = Callable[[Attempt, WatchedSandbox, TurnRecord], Awaitable[None]]


class BuiltinAgent:
    """The `Agent` that is configured by the `agent` section alone."""

    def __init__(
        self, agent: AgentConfig, chat: ChatFormat, sampler: Sampler, recorder: Recorder, *, after_turn: AfterTurn
    ) -> None:
        """`after_turn` is called between turns."""
        self._agent = agent
        self._chat = chat
        self._speaker = Speaker(agent, chat, sampler)
        self._recorder = recorder
        self._after_turn = after_turn

    def tell(self, attempt: Attempt, step: Step | None) -> bool:
        task = attempt.spec.task
        if not attempt.conversation.begun:
            question = attempt.conversation.question(initial_messages(self._agent, task.instruction))
            attempt.conversation.ask(question)
            return True  # its length is looked at before a turn
        if step is None or step is task.steps[0]:
            return True
        question = attempt.conversation.reply(Message("user", step.instruction))
        if len(question.ids) >= self._agent.max_episode_tokens:
            return False
        attempt.conversation.ask(question)
        return True

    async def act(self, attempt: Attempt, step: Step | None, watched: WatchedSandbox, deadline: float) -> End:
        while attempt.num_turns < self._agent.max_turns:
            if attempt.active_now() >= deadline:
                return End.TIME_BUDGET
            if len(attempt.conversation.ids) >= self._agent.max_episode_tokens:
                return End.TOKEN_BUDGET
            record, end = await self._turn(attempt, watched, deadline)
            attempt.num_turns += 1
            attempt.generation_s += record.generation_s
            attempt.tool_s += record.tool_s
            if end is not None:
                return end
            await self._after_turn(attempt, watched, record)
        return End.TURN_BUDGET

    async def _turn(self, attempt: Attempt, watched: WatchedSandbox, deadline: float) -> tuple[TurnRecord, End | None]:
        """One generation and what it asked for, recorded; no end to go on."""
        began_at, began_wall, began = wall(), monotonic(), attempt.active_now()
        conversation = attempt.conversation
        said = await self._speaker.speak(attempt, conversation.ids, call=attempt.num_turns)
        generated = attempt.active_now()
        ids = said.generation.ids
        message = self._chat.decode(ids, special=reads_special(self._agent.format, self._agent.reasoning))
        conversation.say(
            said.generation, Message("assistant", self._chat.decode(ids, special=True)), closed=said.closed
        )
        action = parse(self._agent.format, message, complete=said.complete, reasoning=self._agent.reasoning)
        timeout_s: float | None = None
        result: ExecResult | None = None
        observation: str | None = None
        if isinstance(action, Command):
            timeout_s = max(min(self._agent.tool_timeout_s, deadline - generated), 0.1)
            result = await watched.exec(action.text, timeout_s=timeout_s)
            observation = observe(result, limit_chars=self._agent.observation_chars, timeout_s=timeout_s)
        elif isinstance(action, Malformed):
            observation = f"({action.reason})"
        end = End.FINISHED if isinstance(action, Finished) else self._append(attempt, observation or "")
        ended = attempt.active_now()
        record = TurnRecord(
            episode=attempt.spec.episode,
            turn=attempt.num_turns,
            began_at=began_at,
            message=message,
            command=action.text if isinstance(action, Command) else None,
            timeout_s=timeout_s,
            result=result,
            observation=observation,
            segment=conversation.take_segment(),
            generation_s=generated - began,
            tool_s=ended - generated,
            suspended_s=(monotonic() - began_wall) - (ended - began),
        )
        self._recorder.record_turn(record)
        return record, end

    def _append(self, attempt: Attempt, observation: str) -> End | None:
        """Ask with the observation if a further turn fits behind it."""
        question = attempt.conversation.reply(Message(self._agent.observation_role, observation))
        if len(question.ids) >= self._agent.max_episode_tokens:
            return End.TOKEN_BUDGET
        if attempt.num_turns + 1 < self._agent.max_turns:
            attempt.conversation.ask(question)
        return None


def initial_messages(agent: AgentConfig, instruction: str) -> list[Message]:
    """System prompt, worked examples (alternately user and assistant), then the task."""
    system = [Message("system", agent.system_prompt)] if agent.system_prompt else []
    examples = [Message("user" if i % 2 == 0 else "assistant", text) for i, text in enumerate(agent.examples)]
    return [*system, *examples, Message("user", instruction)]
