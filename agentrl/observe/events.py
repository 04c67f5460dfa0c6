"""What happens in a run, as values. The controller emits them; views, files and reports consume them.

Every event is a frozen dataclass of plain values; `asdict` of it is what `--json` prints.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Protocol


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base of all events. `kind` is its name in JSON."""

    kind: ClassVar[str]


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event):
    kind: ClassVar[str] = "run_started"
    name: str
    directory: str
    seed: int
    steps: int
    groups_per_step: int
    resumed_at: int
    """Step that was the last applied one; 0 for a new run."""


@dataclass(frozen=True, kw_only=True)
class Phase(Event):
    """What the run as a whole is doing."""

    kind: ClassVar[str] = "phase"
    phase: str
    """preparing, starting, evaluating, collecting, switching, training, publishing, stopping"""
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class ProcessChanged(Event):
    kind: ClassVar[str] = "process"
    role: str
    state: str
    """starting, up, down, stopped"""
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class EpisodeEnded(Event):
    kind: ClassVar[str] = "episode"
    episode: str
    task: str
    verdict: str
    cause: str
    reward: float | None
    num_turns: int
    num_tokens: int
    live: int
    """Episodes acting now."""


@dataclass(frozen=True, kw_only=True)
class EpisodeCancelled(Event):
    """It was not needed any more; it has no verdict."""

    kind: ClassVar[str] = "cancelled"
    episode: str
    task: str
    cause: str
    """surplus: its group had enough members; straggler: its group was not to wait for it"""
    num_turns: int
    num_tokens: int
    """How far it came."""
    live: int
    """Episodes acting now, those included that are being cancelled."""


@dataclass(frozen=True, kw_only=True)
class GroupClosed(Event):
    kind: ClassVar[str] = "group"
    group: str
    task: str
    ready: bool
    reason: str | None
    """Why it was dropped."""
    num_ready: int
    """Groups in the ready pool now."""


@dataclass(frozen=True, kw_only=True)
class LaunchingChanged(Event):
    """Launching pauses because too many episodes failed for infrastructure, or goes on as before."""

    kind: ClassVar[str] = "launching"
    paused_s: float | None
    """For how long, until a few are tried; None: it goes on."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class SandboxesUsed(Event):
    """What the warm pool came to since this controller began. Fields as in `agentrl.sandbox.warm_figures`."""

    kind: ClassVar[str] = "sandboxes"
    hits: int
    misses: int
    started: int
    failed: int
    dead: int
    hedged: int
    abandoned: int
    unused: int
    hit_rate: float | None
    waste: float | None
    acquire_p50_s: float | None
    acquire_p95_s: float | None
    warm: int


@dataclass(frozen=True, kw_only=True)
class BatchReady(Event):
    kind: ClassVar[str] = "batch"
    step: int
    time_to_batch_s: float
    reward_sampled: float
    num_groups: int
    num_trajectories: int


@dataclass(frozen=True, kw_only=True)
class StepApplied(Event):
    kind: ClassVar[str] = "step"
    step: int
    reward_sampled: float
    time_to_batch_s: float
    step_s: float
    """From batch ready to applied."""
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class EnginesTold(Event):
    """What the engines said of their work when a batch was complete."""

    kind: ClassVar[str] = "engines"
    step: int
    engines: dict[str, dict[str, float]]
    """By engine, then by the names in `agentrl.inference.gauges`."""


@dataclass(frozen=True, kw_only=True)
class Published(Event):
    kind: ClassVar[str] = "published"
    version: int
    method: str
    """storage, direct, shared"""
    latency_s: float
    engines: int
    """Engines that serve it."""
    downtime_s: float = 0.0
    """For so long none of them was sent anything."""
    received_bytes: int = 0
    """Of weights that travelled to engines since the publication before, those of restarted ones included."""
    probe_difference: float | None = None
    """Largest mean absolute difference of an engine's log-probs from the trainer's; None: not compared."""


@dataclass(frozen=True, kw_only=True)
class BalanceDecided(Event):
    """What the swing engines do next, and what that was decided from."""

    kind: ClassVar[str] = "balance"
    step: int
    choice: str
    """train, generate, return, stay"""
    reason: str
    predicted_s: float | None
    """From now to the start of the next training; None where there was nothing to predict from."""
    gain_s: float | None
    """By so much the other choice is predicted to be slower."""
    inputs: dict[str, float | int | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BalanceRealised(Event):
    """What a decision's prediction came to."""

    kind: ClassVar[str] = "balance_realised"
    step: int
    """The step whose training began."""
    predicted_s: float
    realised_s: float


@dataclass(frozen=True, kw_only=True)
class GpuTimeSpent(Event):
    """What GPU time went to since the last such event."""

    kind: ClassVar[str] = "gpu_time"
    step: int
    gpu_s: dict[str, float] = field(default_factory=dict)
    """GPU seconds by use."""


@dataclass(frozen=True, kw_only=True)
class Evaluated(Event):
    kind: ClassVar[str] = "evaluation"
    label: str
    version: int
    num_tasks: int
    success: float
    """Mean reward of greedy episodes on held-out tasks."""


@dataclass(frozen=True, kw_only=True)
class Warned(Event):
    kind: ClassVar[str] = "warning"
    message: str


@dataclass(frozen=True, kw_only=True)
class RunEnded(Event):
    kind: ClassVar[str] = "run_ended"
    status: str
    """finished, stopped, paused, failed"""
    detail: str
    summary: dict[str, object] = field(default_factory=dict)


class Observer(Protocol):
    """Consumes events, in order, in the controller's thread; must not block."""

    def emit(self, event: Event) -> None: ...


class Observers:
    """Several observers as one."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def emit(self, event: Event) -> None:
        for observer in self._observers:
            observer.emit(event)
