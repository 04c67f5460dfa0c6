"""The agent loop: one attempt at a task in its own sandbox, from the first prompt to a verdict.

Token-native: ids are appended and never re-tokenised. Every finished turn is recorded before the next one begins. A
suspended generation returns what it has; the loop keeps it and asks for the rest, under whatever version then serves.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from agentrl.clock import monotonic, wall
from agentrl.errors import EngineError, EngineRequestError, ImageError, SandboxError
from agentrl.inference.engine import FinishReason, Generation, SamplingParams
from agentrl.rollout.active_time import ActiveTime
from agentrl.rollout.branch import Branch, own_snapshot
from agentrl.rollout.chat import Message
from agentrl.rollout.checkpoints import Checkpoint, Checkpoints
from agentrl.rollout.config import AgentConfig
from agentrl.rollout.evidence import End, Evidence, Times
from agentrl.rollout.forks import GroupForks
from agentrl.rollout.grading import Grading, close, grade, scores
from agentrl.rollout.hold import Hold
from agentrl.rollout.observation import observe
from agentrl.rollout.tool_calls import Command, Finished, Malformed, parse
from agentrl.rollout.trajectory import TrajectoryBuilder
from agentrl.rollout.verdict import Cause, Verdict, decide, reward
from agentrl.rollout.watched import WatchedSandbox
from agentrl.sandbox.death import Death
from agentrl.sandbox.provider import ExecResult, Sandbox, SandboxProvider, SandboxSpec
from agentrl.tasks.rewards import together
from agentrl.tasks.task import Step, Task, Verification
from agentrl.tasks.verifier import not_started, prepare_step
from agentrl.wire import Segment, Trajectory

log = logging.getLogger(__name__)


class Sampler(Protocol):
    """Samples for episodes, on whichever engine; hides suspension, restarts and retries."""

    async def sample(
        self, episode: str, rid: str, ids: list[int], params: SamplingParams, hold: Hold | None = None
    ) -> Generation:
        """Waits while generation is suspended, and within `hold.waiting()` while other episodes have all the room.

        Raises EngineError when the turn's deadline passes; SandboxError if the sandbox dies in the hold.
        """
        ...

    def forget(self, episode: str) -> None:
        """The episode samples no more; its place on an engine is free. Idempotent."""
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
    began_at: float
    """Seconds since the Unix epoch."""
    message: str
    command: str | None
    timeout_s: float | None
    """The command's limit of wall time."""
    result: ExecResult | None
    """What the command did, its output included."""
    observation: str | None
    """What the agent was shown of it."""
    segment: Segment
    generation_s: float
    tool_s: float
    suspended_s: float
    """In which generation stood still for training or publication."""


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
        snapshot_every_turns: int = 0,
        fork_groups: bool = False,
        branch: Branch | None = None,
    ) -> None:
        """`snapshot_every_turns`, `fork_groups`: see `SandboxConfig`; without effect where the provider makes no
        snapshots. With a `branch`, training episodes of its task begin there."""
        self._agent = agent
        self._chat = chat
        self._sampler = sampler
        self._provider = provider
        self._recorder = recorder
        self._active_time = active_time
        self._snapshot_every = snapshot_every_turns if provider.capabilities.snapshot else 0
        self._checkpoints = Checkpoints()
        self._forks = GroupForks(provider) if fork_groups and provider.capabilities.snapshot else None
        self._branch = branch

    async def run(self, spec: EpisodeSpec) -> EpisodeResult:
        """Act, verify, decide. Failures of sandbox or engine become a verdict; cancellation closes the sandbox."""
        prompt = self._chat.prompt(initial_messages(self._agent, spec.task.instruction))
        attempt = _Attempt(spec=spec, builder=TrajectoryBuilder(prompt), started=self._run_now(), began=monotonic())
        try:
            sandbox = await self._start(attempt)
        except (SandboxError, ImageError) as error:
            return self._result(attempt, _lost(Evidence(), error))
        attempt.start_s = monotonic() - attempt.began
        attempt.waited_s = self._run_now() - attempt.started
        attempt.hold = Hold(sandbox, self._active_time)
        state = attempt.checkpoint.session_state if attempt.checkpoint else b""
        watched = WatchedSandbox(sandbox, self._agent, user=spec.task.agent_user, session_state=state)
        attempt.resume()
        for record in attempt.turns:
            self._recorder.record_turn(record)
        try:
            evidence = await self._attempt(attempt, watched)
        except BaseException:
            await attempt.release()
            raise
        finally:
            self._sampler.forget(spec.episode)
            await close(sandbox)
        seen = replace(evidence, commands=watched.commands, probes=watched.probes)
        result = self._result(attempt, replace(seen, resumed_turns=attempt.resumed_turns))
        if result.verdict is Verdict.INFRA_FAILURE and attempt.checkpoint is not None:
            await self._checkpoints.keep(spec.episode, attempt.checkpoint)
        else:
            await attempt.release()
        return result

    async def _start(self, attempt: _Attempt) -> Sandbox:
        """A sandbox where the member's last attempt left off, or an untouched one. Raises SandboxError, ImageError."""
        sandbox_spec = replace(attempt.spec.task.spec, owner=attempt.spec.episode)
        checkpoint = self._checkpoints.take(attempt.spec.episode)
        if checkpoint is not None:
            try:
                return await self._from(checkpoint, attempt, sandbox_spec)
            except SandboxError as error:  # it went with its provider's supervisor
                log.warning("%s starts again from the beginning: %s", attempt.spec.episode, error)
                await checkpoint.snapshot.release()
        branch = self._branch
        if branch is None or attempt.spec.greedy or not branch.concerns(attempt.spec.task):
            if self._forks is None or attempt.spec.greedy:
                return await self._provider.create(sandbox_spec)
            return await self._forks.create(attempt.spec.group, sandbox_spec)
        try:
            return await self._from(await branch.checkpoint(attempt.spec.task), attempt, sandbox_spec)
        except SandboxError:
            branch.forget()
            raise

    async def _from(self, checkpoint: Checkpoint, attempt: _Attempt, spec: SandboxSpec) -> Sandbox:
        sandbox = await self._provider.create(spec, snapshot=own_snapshot(checkpoint.snapshot))
        attempt.checkpoint = checkpoint
        return sandbox

    async def _checkpoint(self, attempt: _Attempt, watched: WatchedSandbox) -> None:
        """Every so many turns: keep where the episode is. Raises SandboxError."""
        if not self._snapshot_every or attempt.num_turns % self._snapshot_every or attempt.spec.task.steps:
            return
        snapshot = await watched.sandbox.snapshot()
        await attempt.release()
        attempt.checkpoint = Checkpoint(
            turns=tuple(attempt.turns),
            num_turns=attempt.num_turns,
            builder=attempt.builder.copy(),
            closed=attempt.closed,
            active_s=self._active_now(attempt) - attempt.started,
            snapshot=snapshot,
            session_state=watched.session_state,
        )

    async def _attempt(self, attempt: _Attempt, watched: WatchedSandbox) -> Evidence:
        evidence = Evidence(sandbox_started=True)
        task = attempt.spec.task
        graded: list[tuple[Step | None, Verification]] = []
        try:
            for step in task.steps or (None,):
                if not self._tell(attempt, step):
                    return replace(evidence, end=End.TOKEN_BUDGET)
                evidence = replace(evidence, end=None)
                obstacle = await prepare_step(task, step, watched.sandbox) if step else None
                if obstacle is None:
                    evidence = replace(evidence, end=await self._act(attempt, step, watched))
                    if not task.steps or step is task.steps[-1]:
                        self._sampler.forget(attempt.spec.episode)  # others have use for its room meanwhile
                    grading = await grade(task, step, watched, lambda: self._provider.create(task.spec))
                else:
                    evidence = replace(evidence, end=End.NOT_BEGUN)
                    grading = Grading(verification=not_started(obstacle), alive_after=await watched.probe())
                graded.append((step, grading.verification))
                so_far = together(task, [found for _, found in graded])
                seen = vars(grading) | {"verification": so_far, "steps": scores(graded)}
                evidence = replace(evidence, **seen)
                if grading.verification.reward is None or evidence.end is not End.FINISHED:
                    break
                if step is not None and not step.passes(grading.verification):
                    break
        except SandboxError as error:
            return _lost(replace(evidence, verification=None, running=watched.running), error)
        except EngineRequestError as error:
            return replace(evidence, engine_refusal=str(error))
        except EngineError as error:
            return replace(evidence, engine_error=str(error))
        return evidence

    def _tell(self, attempt: _Attempt, step: Step | None) -> bool:
        """Tell the agent of a further step; the first one's instruction is in the prompt. False: there is no room."""
        if step is None or step is attempt.spec.task.steps[0]:
            return True
        bridge = self._chat.bridge("user", step.instruction, closed=attempt.closed)
        if len(attempt.builder.ids) + len(bridge) >= self._agent.max_episode_tokens:
            return False
        attempt.builder.append_context(bridge)
        return True

    async def _act(self, attempt: _Attempt, step: Step | None, watched: WatchedSandbox) -> End:
        """Turns until the agent or a budget ends the episode, or the step."""
        acting_from = attempt.started + attempt.waited_s
        deadline = acting_from + self._agent.episode_timeout_s
        limit_s = (step.agent_timeout_s if step else None) or attempt.spec.task.agent_timeout_s
        if limit_s is not None:
            deadline = min(deadline, (self._active_now(attempt) if step else acting_from) + limit_s)
        while attempt.num_turns < self._agent.max_turns:
            if self._active_now(attempt) >= deadline:
                return End.TIME_BUDGET
            if len(attempt.builder.ids) >= self._agent.max_episode_tokens:
                return End.TOKEN_BUDGET
            end = await self._turn(attempt, watched, deadline)
            attempt.num_turns += 1
            if end is not None:
                return end
            await self._checkpoint(attempt, watched)
        return End.TURN_BUDGET

    async def _turn(self, attempt: _Attempt, watched: WatchedSandbox, deadline: float) -> End | None:
        """One generation and what it asked for; None to go on."""
        began_at, began_wall, began = wall(), monotonic(), self._active_now(attempt)
        message, complete, attempt.closed = await self._generate(attempt)
        generated = self._active_now(attempt)
        action = parse(self._agent.format, message, complete=complete)
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
        ended = self._active_now(attempt)
        record = TurnRecord(
            episode=attempt.spec.episode,
            turn=attempt.num_turns,
            began_at=began_at,
            message=message,
            command=action.text if isinstance(action, Command) else None,
            timeout_s=timeout_s,
            result=result,
            observation=observation,
            segment=attempt.builder.take_segment(),
            generation_s=generated - began,
            tool_s=ended - generated,
            suspended_s=(monotonic() - began_wall) - (ended - began),
        )
        attempt.generation_s += record.generation_s
        attempt.tool_s += record.tool_s
        if self._snapshot_every:
            attempt.turns.append(record)
        self._recorder.record_turn(record)
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
            generation = await self._sampler.sample(spec.episode, rid, builder.ids, params, attempt.hold)
            builder.append_sampled(generation)
            segment += 1
            finish = generation.finish
            if finish is FinishReason.ABORT and len(builder.ids) - start >= budget:
                finish = FinishReason.LENGTH
        sampled = builder.ids[start:]
        closed = bool(sampled) and sampled[-1] == self._chat.end_id
        return self._chat.decode(sampled), finish is FinishReason.STOP, closed

    def _append(self, attempt: _Attempt, observation: str) -> End | None:
        """Append the observation if a further turn fits behind it."""
        bridge = self._chat.bridge(self._agent.observation_role, observation, closed=attempt.closed)
        if len(attempt.builder.ids) + len(bridge) >= self._agent.max_episode_tokens:
            return End.TOKEN_BUDGET
        if attempt.num_turns + 1 < self._agent.max_turns:
            attempt.builder.append_context(bridge)
        return None

    def _result(self, attempt: _Attempt, evidence: Evidence) -> EpisodeResult:
        evidence = replace(evidence, times=self._times(attempt, evidence))
        verdict, cause = decide(evidence)
        trajectory = None
        if verdict.usable:
            trajectory = attempt.builder.build(
                episode=attempt.spec.episode,
                group=attempt.spec.group,
                task=attempt.spec.task.name,
                reward=reward(evidence),
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
            active_s=self._active_now(attempt) - attempt.started,
        )

    def _times(self, attempt: _Attempt, evidence: Evidence) -> Times:
        return Times(
            start_s=attempt.start_s,
            generation_s=attempt.generation_s,
            tool_s=attempt.tool_s,
            suspended_s=monotonic() - attempt.began - (self._active_now(attempt) - attempt.started),
            verifier_s=evidence.verification.duration_s if evidence.verification else 0.0,
        )

    def _active_now(self, attempt: _Attempt) -> float:
        """Without the time in which this episode waited for an engine that is lent."""
        return attempt.hold.active_now() if attempt.hold else self._run_now()

    def _run_now(self) -> float:
        return self._active_time.read(monotonic())


@dataclass(kw_only=True)
class _Attempt:
    """What changes while an episode runs."""

    spec: EpisodeSpec
    builder: TrajectoryBuilder
    started: float
    """In active time."""
    began: float
    """In the clock's time."""
    hold: Hold | None = None
    """None until there is a sandbox."""
    num_turns: int = 0
    closed: bool = True
    """Whether the last message's ids end as the chat template ends a message."""
    start_s: float = 0.0
    waited_s: float = 0.0
    """The same in active time: who waits for a sandbox has not begun to act, so its time budget stands still."""
    generation_s: float = 0.0
    tool_s: float = 0.0
    turns: list[TurnRecord] = field(default_factory=list)
    """Finished ones, where checkpoints are made."""
    checkpoint: Checkpoint | None = None
    """The last one, whose snapshot is this attempt's to release."""
    resumed_turns: int = 0

    def resume(self) -> None:
        """Take over what the checkpoint holds, if there is one; turns get this attempt's name."""
        if self.checkpoint is None:
            return
        self.turns = [replace(record, episode=self.spec.episode) for record in self.checkpoint.turns]
        self.builder, self.closed = self.checkpoint.builder.copy(), self.checkpoint.closed
        self.num_turns = self.resumed_turns = self.checkpoint.num_turns
        self.started -= self.checkpoint.active_s
        self.began -= self.checkpoint.active_s
        self.generation_s = sum(record.generation_s for record in self.turns)
        self.tool_s = sum(record.tool_s for record in self.turns)

    async def release(self) -> None:
        """Give up the checkpoint."""
        if self.checkpoint is not None:
            await self.checkpoint.snapshot.release()
            self.checkpoint = None


def _lost(evidence: Evidence, error: SandboxError | ImageError) -> Evidence:
    death = error.death if isinstance(error, SandboxError) else Death.IMAGE
    return replace(
        evidence, sandbox_error=str(error), death=death if isinstance(death, Death) else None, alive_after=False
    )


def initial_messages(agent: AgentConfig, instruction: str) -> list[Message]:
    """System prompt, worked examples (alternately user and assistant), then the task."""
    system = [Message("system", agent.system_prompt)] if agent.system_prompt else []
    examples = [Message("user" if i % 2 == 0 else "assistant", text) for i, text in enumerate(agent.examples)]
    return [*system, *examples, Message("user", instruction)]


def request_seed(seed: int, rid: str) -> int:
    """Sampling seed of one request: a 31-bit hash of the run's seed and the request id, the same on every machine."""
    digest = hashlib.blake2b(f"{seed}:{rid}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") & 0x7FFF_FFFF
