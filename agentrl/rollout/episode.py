"""The agent loop: one attempt at a task in its own sandbox, from the first prompt to a verdict.

Token-native: ids are appended and never re-tokenised. Every finished turn is recorded before the next one begins. A
suspended generation returns what it has; the loop keeps it and asks for the rest, under whatever version then serves.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from agentrl.clock import monotonic
from agentrl.errors import EngineError, EngineRequestError, SandboxError
from agentrl.inference.engine import FinishReason, Generation, SamplingParams
from agentrl.rollout.active_time import ActiveTime
from agentrl.rollout.chat import Message
from agentrl.rollout.config import AgentConfig
from agentrl.rollout.observation import observe
from agentrl.rollout.tool_calls import Action, Command, Finished, Malformed, parse
from agentrl.rollout.trajectory import TrajectoryBuilder
from agentrl.rollout.verdict import Cause, End, Evidence, Verdict, decide
from agentrl.sandbox.provider import Sandbox, SandboxProvider
from agentrl.tasks.task import Task
from agentrl.tasks.verifier import verify
from agentrl.wire import Segment, Trajectory

log = logging.getLogger(__name__)


class Sampler(Protocol):
    """Samples for episodes, on whichever engine; hides suspension, restarts and retries."""

    async def sample(self, episode: str, rid: str, ids: list[int], params: SamplingParams) -> Generation:
        """Waits while generation is suspended. Raises EngineError when the turn's deadline passes."""
        ...

    def forget(self, episode: str) -> None:
        """The episode is over; its place on an engine is free."""
        ...


class ChatFormat(Protocol):
    """Conversations as exact token ids; in production `agentrl.rollout.chat.Chat`, whose docstrings are the promise."""

    end_id: int
    stop_ids: tuple[int, ...]

    def prompt(self, messages: Sequence[Message]) -> list[int]: ...

    def bridge(self, role: str, content: str, *, closed: bool = True) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass(frozen=True, kw_only=True)
class TurnRecord:
    """One finished turn, as the ledger keeps it."""

    episode: str
    turn: int
    message: str
    command: str | None
    exit_code: int | None
    observation: str | None
    segment: Segment
    generation_s: float
    tool_s: float


class Recorder(Protocol):
    """Where finished turns go; returns when the turn is durable."""

    def record_turn(self, record: TurnRecord) -> None: ...


@dataclass(frozen=True, kw_only=True)
class EpisodeSpec:
    """Which attempt at which task."""

    episode: str
    """Fixed length in a run (engines match request ids by prefix)."""
    group: str
    task: Task
    seed: int
    """The run's seed; with the episode id it fixes every request's sampling seed."""
    greedy: bool = False


@dataclass(frozen=True, kw_only=True)
class EpisodeResult:
    """How it went. `trajectory` is set exactly when the verdict is usable."""

    spec: EpisodeSpec
    verdict: Verdict
    cause: Cause
    evidence: Evidence
    trajectory: Trajectory | None
    num_turns: int
    num_tokens: int
    active_s: float


class EpisodeRunner:
    """Runs episodes; holds what they share. One call of `run` per episode, any number at once."""

    def __init__(
        self,
        *,
        agent: AgentConfig,
        chat: ChatFormat,
        sampler: Sampler,
        provider: SandboxProvider,
        recorder: Recorder,
        active_time: ActiveTime,
    ) -> None:
        self._agent = agent
        self._chat = chat
        self._sampler = sampler
        self._provider = provider
        self._recorder = recorder
        self._active_time = active_time

    async def run(self, spec: EpisodeSpec) -> EpisodeResult:
        """Act, verify, decide. Failures of sandbox or engine become a verdict; cancellation closes the sandbox."""
        prompt = self._chat.prompt(initial_messages(self._agent, spec.task.instruction))
        attempt = _Attempt(spec=spec, builder=TrajectoryBuilder(prompt), started=self._active_now())
        try:
            sandbox = await self._provider.create(replace(spec.task.spec, owner=spec.episode))
        except SandboxError as error:
            return self._result(attempt, Evidence(sandbox_error=str(error)))
        try:
            evidence = await self._attempt(attempt, sandbox)
        finally:
            self._sampler.forget(spec.episode)
            try:
                await sandbox.close()
            except SandboxError as error:
                # The verdict stands; what is left of the sandbox goes when the provider closes.
                log.warning("%s", error)
        return self._result(attempt, evidence)

    async def _attempt(self, attempt: _Attempt, sandbox: Sandbox) -> Evidence:
        evidence = Evidence(sandbox_started=True)
        try:
            evidence = replace(evidence, end=await self._act(attempt, sandbox))
            evidence = replace(evidence, verification=await verify(attempt.spec.task, sandbox))
        except SandboxError as error:
            return replace(evidence, sandbox_error=str(error), alive_after=False)
        except EngineRequestError as error:
            return replace(evidence, engine_refusal=str(error))
        except EngineError as error:
            return replace(evidence, engine_error=str(error))
        verified = evidence.verification is not None and evidence.verification.reward is not None
        return evidence if verified else replace(evidence, alive_after=await sandbox.probe())

    async def _act(self, attempt: _Attempt, sandbox: Sandbox) -> End:
        """Turns until the agent or a budget ends the episode."""
        deadline = attempt.started + min(
            self._agent.episode_timeout_s, attempt.spec.task.agent_timeout_s or self._agent.episode_timeout_s
        )
        while attempt.num_turns < self._agent.max_turns:
            if self._active_now() >= deadline:
                return End.TIME_BUDGET
            if len(attempt.builder.ids) >= self._agent.max_episode_tokens:
                return End.TOKEN_BUDGET
            end = await self._turn(attempt, sandbox, deadline)
            attempt.num_turns += 1
            if end is not None:
                return end
        return End.TURN_BUDGET

    async def _turn(self, attempt: _Attempt, sandbox: Sandbox, deadline: float) -> End | None:
        """One generation and what it asked for; None to go on."""
        began = self._active_now()
        message, complete, closed = await self._generate(attempt)
        generated = self._active_now()
        action = parse(self._agent.format, message, complete=complete)
        exit_code: int | None = None
        observation: str | None = None
        if not isinstance(action, Finished):
            observation, exit_code = await self._carry_out(action, attempt.spec.task, sandbox, deadline - generated)
        end = End.FINISHED if isinstance(action, Finished) else self._append(attempt, observation or "", closed)
        self._recorder.record_turn(
            TurnRecord(
                episode=attempt.spec.episode,
                turn=attempt.num_turns,
                message=message,
                command=action.text if isinstance(action, Command) else None,
                exit_code=exit_code,
                observation=observation,
                segment=attempt.builder.take_segment(),
                generation_s=generated - began,
                tool_s=self._active_now() - generated,
            )
        )
        return end

    async def _generate(self, attempt: _Attempt) -> tuple[str, bool, bool]:
        """Sample one message, over as many segments as suspensions cut it into.

        Returns its text, whether it ended by itself, and whether its ids end as the chat template ends a message.
        """
        builder, spec = attempt.builder, attempt.spec
        start = len(builder.ids)
        budget = min(self._agent.max_turn_tokens, self._agent.max_episode_tokens - start)
        finish = FinishReason.ABORT
        segment = 0
        while finish is FinishReason.ABORT:
            rid = f"{spec.episode}.t{attempt.num_turns:03d}.s{segment:03d}"
            params = SamplingParams(
                max_new_tokens=budget - (len(builder.ids) - start),
                temperature=0.0 if spec.greedy else self._agent.temperature,
                stop_token_ids=self._chat.stop_ids,
                seed=request_seed(spec.seed, rid),
            )
            generation = await self._sampler.sample(spec.episode, rid, builder.ids, params)
            builder.append_sampled(generation)
            segment += 1
            finish = generation.finish
            if finish is FinishReason.ABORT and len(builder.ids) - start >= budget:
                finish = FinishReason.LENGTH
        sampled = builder.ids[start:]
        closed = bool(sampled) and sampled[-1] == self._chat.end_id
        return self._chat.decode(sampled), finish is FinishReason.STOP, closed

    async def _carry_out(
        self, action: Action, task: Task, sandbox: Sandbox, remaining_s: float
    ) -> tuple[str, int | None]:
        """Run the command, or say why nothing was run."""
        if isinstance(action, Malformed):
            return f"({action.reason})", None
        assert isinstance(action, Command)
        timeout_s = max(min(self._agent.tool_timeout_s, remaining_s), 0.1)
        result = await sandbox.exec(action.text, user=task.agent_user, timeout_s=timeout_s)
        text = observe(result, limit_chars=self._agent.observation_chars, timeout_s=timeout_s)
        return text, result.exit_code

    def _append(self, attempt: _Attempt, observation: str, closed: bool) -> End | None:
        """Append the observation if a further turn fits behind it."""
        bridge = self._chat.bridge(self._agent.observation_role, observation, closed=closed)
        if len(attempt.builder.ids) + len(bridge) >= self._agent.max_episode_tokens:
            return End.TOKEN_BUDGET
        if attempt.num_turns + 1 < self._agent.max_turns:
            attempt.builder.append_context(bridge)
        return None

    def _result(self, attempt: _Attempt, evidence: Evidence) -> EpisodeResult:
        verdict, cause = decide(evidence)
        trajectory = None
        if verdict.usable:
            assert evidence.verification is not None and evidence.verification.reward is not None
            trajectory = attempt.builder.build(
                episode=attempt.spec.episode,
                group=attempt.spec.group,
                task=attempt.spec.task.name,
                reward=evidence.verification.reward,
                num_turns=attempt.num_turns,
            )
        return EpisodeResult(
            spec=attempt.spec,
            verdict=verdict,
            cause=cause,
            evidence=evidence,
            trajectory=trajectory,
            num_turns=attempt.num_turns,
            num_tokens=len(attempt.builder.ids),
            active_s=self._active_now() - attempt.started,
        )

    def _active_now(self) -> float:
        return self._active_time.read(monotonic())


@dataclass(kw_only=True)
class _Attempt:
    """What changes while an episode runs."""

    spec: EpisodeSpec
    builder: TrajectoryBuilder
    started: float
    num_turns: int = 0


def initial_messages(agent: AgentConfig, instruction: str) -> list[Message]:
    """System prompt, worked examples (alternately user and assistant), then the task."""
    system = [Message("system", agent.system_prompt)] if agent.system_prompt else []
    examples = [Message("user" if i % 2 == 0 else "assistant", text) for i, text in enumerate(agent.examples)]
    return [*system, *examples, Message("user", instruction)]


def request_seed(seed: int, rid: str) -> int:
    """Sampling seed of one request: a 31-bit hash of the run's seed and the request id, the same on every machine."""
    digest = hashlib.blake2b(f"{seed}:{rid}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") & 0x7FFF_FFFF
