"""The rules of the lint about who acts: a harness takes over what the built-in agent is configured by."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from agentrl.config.fields import schema
from agentrl.config.lint import Finding, LintFacts, error, warning
from agentrl.config.schema import JobConfig
from agentrl.rollout.config import OnBreak, Reasoning


def harness_has_its_own_prompts(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """What a harness says to the policy is its own business."""
    if not config.agent.harness.command:
        if config.agent.harness.model != schema().leaves["agent.harness.model"].default:
            yield warning("agent.harness.model", "is ignored: agent.harness.command is empty", "remove it")
        return
    for name in ("system_prompt", "examples"):
        if getattr(config.agent, name):
            yield error(f"agent.{name}", "a harness has prompts of its own", "remove it, or agent.harness.command")


def harness_starts_at_the_beginning(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """A sandbox can be put back to where it was, and a program of somebody else's cannot."""
    if not config.agent.harness.command:
        return
    hint = "a harness cannot go on from the middle of an episode"
    if config.sandbox.snapshot_every_turns:
        yield error("sandbox.snapshot_every_turns", "agent.harness.command is set", hint)
    if config.tasks.branch_from is not None:
        yield error("tasks.branch_from", "agent.harness.command is set", hint)


def dropping_leaves_something(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """Where earlier reasoning is left out, each turn begins a new sequence: only the last would be trained on."""
    agent = config.agent
    if agent.on_break is OnBreak.drop and agent.reasoning is not Reasoning.none and agent.max_turns > 1:
        message = "drop trains on the last turn alone where the chat template leaves out earlier reasoning"
        yield warning("agent.on_break", message, "choose branch")


AGENT_RULES: tuple[Callable[[JobConfig, LintFacts], Iterator[Finding]], ...] = (
    harness_has_its_own_prompts,
    harness_starts_at_the_beginning,
    dropping_leaves_something,
)
