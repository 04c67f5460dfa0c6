"""One attempt at a task in its own sandbox, from its start to a verdict; who acts in it is an `Agent`."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from agentrl.clock import monotonic
from agentrl.errors import EngineError, EngineRequestError, HarnessFailed, ImageError, SandboxError
from agentrl.rollout.active_time import ActiveTime
from agentrl.rollout.attempt import Agent, Attempt, EpisodeSpec
from agentrl.rollout.branch import Branch, own_snapshot
from agentrl.rollout.checkpoints import Checkpoint, Checkpoints
from agentrl.rollout.config import AgentConfig
from agentrl.rollout.conversation import Conversation
from agentrl.rollout.edges import ChatFormat, Recorder, Sampler, TurnRecord
from agentrl.rollout.evidence import End, Evidence, Times
from agentrl.rollout.forks import GroupForks
from agentrl.rollout.grading import Grading, close, grade, scores
from agentrl.rollout.hold import Hold
from agentrl.rollout.loop import BuiltinAgent
from agentrl.rollout.verdict import Cause, Verdict, decide, reward
from agentrl.rollout.watched import WatchedSandbox
from agentrl.sandbox.death import Death
from agentrl.sandbox.provider import Sandbox, SandboxProvider, SandboxSpec
from agentrl.tasks.rewards import together
from agentrl.tasks.task import Step, Verification
from agentrl.tasks.verifier import not_started, prepare_step
from agentrl.wire import Trajectory

log = logging.getLogger(__name__)


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
    """Of its longest sequence."""
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
        harness: Agent | None = None,
    ) -> None:
        """`snapshot_every_turns`, `fork_groups`: see `SandboxConfig`; without effect where the provider makes no
        snapshots. With a `branch`, training episodes of its task begin there. `harness`: who acts instead of the
        built-in loop."""
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
        self._acts: Agent = harness or BuiltinAgent(agent, chat, sampler, recorder, after_turn=self._checkpoint)

    async def run(self, spec: EpisodeSpec) -> EpisodeResult:
        """Act, verify, decide. Failures of sandbox or engine become a verdict; cancellation closes the sandbox."""
        conversation = Conversation(self._chat)
        attempt = Attempt(spec=spec, conversation=conversation, started=self._run_now(), began=monotonic())
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

    async def _start(self, attempt: Attempt) -> Sandbox:
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

    async def _from(self, checkpoint: Checkpoint, attempt: Attempt, spec: SandboxSpec) -> Sandbox:
        sandbox = await self._provider.create(spec, snapshot=own_snapshot(checkpoint.snapshot))
        attempt.checkpoint = checkpoint
        return sandbox

    async def _checkpoint(self, attempt: Attempt, watched: WatchedSandbox, record: TurnRecord) -> None:
        """Every so many turns: keep where the episode is. Raises SandboxError."""
        if self._snapshot_every:
            attempt.turns.append(record)
        if not self._snapshot_every or attempt.num_turns % self._snapshot_every or attempt.spec.task.steps:
            return
        snapshot = await watched.sandbox.snapshot()
        await attempt.release()
        attempt.checkpoint = Checkpoint(
            turns=tuple(attempt.turns),
            num_turns=attempt.num_turns,
            conversation=attempt.conversation.copy(),
            active_s=self._active_now(attempt) - attempt.started,
            snapshot=snapshot,
            session_state=watched.session_state,
        )

    async def _attempt(self, attempt: Attempt, watched: WatchedSandbox) -> Evidence:
        evidence = Evidence(sandbox_started=True)
        task = attempt.spec.task
        graded: list[tuple[Step | None, Verification]] = []
        try:
            for step in task.steps or (None,):
                if not self._acts.tell(attempt, step):
                    return replace(evidence, end=End.TOKEN_BUDGET)
                evidence = replace(evidence, end=None)
                obstacle = await prepare_step(task, step, watched.sandbox) if step else None
                if obstacle is None:
                    deadline = self._deadline(attempt, step)
                    evidence = replace(evidence, end=await self._acts.act(attempt, step, watched, deadline))
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
        except HarnessFailed as error:
            log.warning("%s", error)
            return evidence
        except EngineRequestError as error:
            return replace(evidence, engine_refusal=str(error))
        except EngineError as error:
            return replace(evidence, engine_error=str(error))
        return evidence

    def _deadline(self, attempt: Attempt, step: Step | None) -> float:
        """Of acting, or of acting on a step; in active time."""
        acting_from = attempt.started + attempt.waited_s
        deadline = acting_from + self._agent.episode_timeout_s
        limit_s = (step.agent_timeout_s if step else None) or attempt.spec.task.agent_timeout_s
        if limit_s is not None:
            deadline = min(deadline, (self._active_now(attempt) if step else acting_from) + limit_s)
        return deadline

    def _result(self, attempt: Attempt, evidence: Evidence) -> EpisodeResult:
        sequences = attempt.conversation.figures(self._agent.on_break)
        evidence = replace(evidence, times=self._times(attempt, evidence), sequences=sequences, harness=attempt.harness)
        verdict, cause = decide(evidence)
        trajectory = None
        if verdict.usable:
            trajectory = attempt.conversation.build(
                self._agent.on_break,
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
            num_tokens=attempt.conversation.longest,
            active_s=self._active_now(attempt) - attempt.started,
        )

    def _times(self, attempt: Attempt, evidence: Evidence) -> Times:
        return Times(
            start_s=attempt.start_s,
            generation_s=attempt.generation_s,
            tool_s=attempt.tool_s,
            suspended_s=monotonic() - attempt.began - (self._active_now(attempt) - attempt.started),
            verifier_s=evidence.verification.duration_s if evidence.verification else 0.0,
        )

    def _active_now(self, attempt: Attempt) -> float:
        """Without the time in which this episode waited for an engine that is lent."""
        return attempt.hold.active_now() if attempt.hold else self._run_now()

    def _run_now(self) -> float:
        return self._active_time.read(monotonic())


def _lost(evidence: Evidence, error: SandboxError | ImageError) -> Evidence:
    death = error.death if isinstance(error, SandboxError) else Death.IMAGE
    return replace(
        evidence, sandbox_error=str(error), death=death if isinstance(death, Death) else None, alive_after=False
    )
