"""A task: instruction, environment, verifier. Loaded from a folder by `agentrl.tasks.harbor` or `terminal_bench`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from agentrl.sandbox.provider import SandboxSpec

TESTS, SOLUTION, LOGS = "/tests", "/solution", "/logs/verifier"
"""Where tests, solution and rewards lie in a sandbox."""


class RewardSource(StrEnum):
    """Where a verifier says what the agent earned."""

    FILES = "files"
    """Harbor: /logs/verifier/reward.json, else reward.txt."""
    PYTEST = "pytest"
    """Terminal-Bench 1: the short summary of pytest on its standard output."""


class StepRewards(StrEnum):
    """How the rewards of several steps become one."""

    MEAN = "mean"
    """Their mean, over the steps that were graded."""
    FINAL = "final"
    """That of the last step that was graded."""


@dataclass(frozen=True, kw_only=True)
class Grader:
    """One grading: what is brought in, what is run, where the reward is read."""

    uploads: tuple[tuple[Path, str], ...]
    """(file or folder of the host, absolute path inside), in this order."""
    script: str
    """Absolute path inside."""
    timeout_s: float
    env: dict[str, str]
    user: str | None
    source: RewardSource = RewardSource.FILES


@dataclass(frozen=True, kw_only=True)
class Step:
    """One of several parts of a task, which share a sandbox and are graded one after another."""

    name: str
    instruction: str
    folder: Path
    """May hold tests/ (laid over the task's own), solution/ and workdir/ (copied to the working folder before it)."""
    agent_timeout_s: float | None = None
    verifier_timeout_s: float | None = None
    verifier_env: dict[str, str] = field(default_factory=dict)
    min_reward: dict[str, float] = field(default_factory=dict)
    """Rewards, by key, below which the further steps are not played."""

    def passes(self, verification: Verification) -> bool:
        """Whether the next step is played."""
        return all(verification.rewards.get(key, -1.0) >= least for key, least in self.min_reward.items())


@dataclass(frozen=True, kw_only=True)
class Task:
    """One problem, ready to be acted on."""

    name: str
    """Unique in its set; the folder's name unless task.toml names it."""
    folder: Path
    instruction: str
    """What the agent is told, verbatim; of a task of several steps, the first step's."""
    spec: SandboxSpec
    """Environment to start."""
    agent_timeout_s: float | None = None
    """Task's own limit of the agent's active time; None: only `agent.episode_timeout_s` holds."""
    agent_user: str | None = None
    verifier_timeout_s: float = 600.0
    verifier_env: dict[str, str] = field(default_factory=dict)
    verifier_user: str | None = None
    solution_env: dict[str, str] = field(default_factory=dict)
    script: str = "tests/test.sh"
    """The verifier's script, relative to `folder`."""
    solution_script: str = "solution/solve.sh"
    """The oracle's script, relative to `folder`."""
    source: RewardSource = RewardSource.FILES
    steps: tuple[Step, ...] = ()
    """Empty for the usual task of one."""
    step_rewards: StepRewards = StepRewards.MEAN
    unknown_keys: tuple[str, ...] = ()
    """Keys of its settings that are not understood: kept and listed, not fatal."""
    notes: tuple[str, ...] = ()
    """What it asks for and gets in another way, one line each."""

    @property
    def tests(self) -> Path:
        return self.folder / "tests"

    @property
    def solution(self) -> Path:
        return (self.folder / self.solution_script).parent

    def grader(self, step: Step | None = None) -> Grader | None:
        """How the state after `step` (None: the task's only one) is graded; None if there is no script to do it."""
        folders = [self.tests] if step is None else [self.tests, step.folder / "tests"]
        uploads = [(folder, TESTS) for folder in folders if folder.is_dir()]
        script = self.folder / self.script
        if script.is_file() and script.parent != self.tests:
            uploads.append((script, f"{TESTS}/{script.name}"))
        if not any((source / script.name).is_file() or source == script for source, _ in uploads):
            return None
        return Grader(
            uploads=tuple(uploads),
            script=f"{TESTS}/{script.name}",
            timeout_s=(step.verifier_timeout_s if step else None) or self.verifier_timeout_s,
            env={**self.verifier_env, **(step.verifier_env if step else {})},
            user=self.verifier_user,
            source=self.source,
        )

    def oracle(self, step: Step | None = None) -> Path | None:
        """The script that solves the task, or one of its steps; None if there is none."""
        script = (self.folder if step is None else step.folder) / self.solution_script
        return script if script.is_file() else None


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What the verifier did. Exactly one of `reward` and `problem` is set."""

    reward: float | None
    """The finite number that it wrote."""
    problem: str | None
    """Why there is no reward: no_tests, not_started, timed_out, missing, empty, not_a_number, not_finite, ambiguous,
    unreadable, missing_tool."""
    started: bool
    output: str
    """Its stdout and stderr, capped, for people."""
    duration_s: float
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Every number that it wrote, by key; a bare number is named reward."""
    missing: tuple[str, ...] = ()
    """What the tests asked for in vain: a command, a package, an address."""
