"""A task: instruction, environment, verifier. Loaded from a folder in Harbor's format by `agentrl.tasks.harbor`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from agentrl.sandbox.provider import SandboxSpec


@dataclass(frozen=True, kw_only=True)
class Task:
    """One problem, ready to be acted on."""

    name: str
    """Unique in its set; the folder's name unless task.toml names it."""
    folder: Path
    instruction: str
    """What the agent is told, verbatim."""
    spec: SandboxSpec
    """Environment to start."""
    agent_timeout_s: float | None = None
    """Task's own limit of the agent's active time; None: only `agent.episode_timeout_s` holds."""
    agent_user: str | None = None
    verifier_timeout_s: float = 600.0
    verifier_env: dict[str, str] = field(default_factory=dict)
    verifier_user: str | None = None
    solution_env: dict[str, str] = field(default_factory=dict)
    unknown_keys: tuple[str, ...] = ()
    """Keys of task.toml that are not understood: kept and listed, not fatal."""

    @property
    def tests(self) -> Path:
        return self.folder / "tests"

    @property
    def solution(self) -> Path:
        return self.folder / "solution"


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What the verifier did. Exactly one of `reward` and `problem` is set."""

    reward: float | None
    """The finite number that it wrote."""
    problem: str | None
    """Why there is no reward: no_tests, not_started, timed_out, missing, empty, not_a_number, not_finite, ambiguous,
    unreadable."""
    started: bool
    output: str
    """Its stdout and stderr, capped, for people."""
    duration_s: float
