"""The run as a person sees it now: a fold over events, without any drawing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from agentrl.observe.events import (
    BalanceDecided,
    BatchReady,
    EpisodeCancelled,
    EpisodeEnded,
    Evaluated,
    Event,
    GpuTimeSpent,
    GroupClosed,
    LaunchingChanged,
    Phase,
    ProcessChanged,
    Published,
    RunEnded,
    RunStarted,
    SandboxesUsed,
    StepApplied,
    Warned,
)
from agentrl.observe.sandboxes import launching_text, sandboxes_text


@dataclass(kw_only=True)
class RunState:
    """Updated by `apply`."""

    name: str = ""
    directory: str = ""
    steps: int = 0
    step: int = 0
    """Last applied step."""
    groups_per_step: int = 0
    phase: str = "preparing"
    phase_detail: str = ""
    processes: dict[str, str] = field(default_factory=dict)
    """Role -> state."""
    live: int = 0
    launching: str = ""
    """Why it pauses, or nothing."""
    sandboxes: str = "-"
    num_ready: int = 0
    rewards: list[float] = field(default_factory=list)
    """Mean sampled reward by step."""
    times_to_batch_s: list[float] = field(default_factory=list)
    step_s: float = 0.0
    publication_s: float = 0.0
    gpu_s: Counter[str] = field(default_factory=Counter)
    """GPU seconds by use, since this controller started."""
    balance: str = ""
    """The last decision."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Of the last step."""
    verdicts: Counter[str] = field(default_factory=Counter)
    drops: Counter[str] = field(default_factory=Counter)
    """Dropped groups by reason."""
    evaluations: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    ended: str | None = None

    def apply(self, event: Event) -> None:
        match event:
            case RunStarted():
                self.name, self.directory, self.steps = event.name, event.directory, event.steps
                self.groups_per_step, self.step = event.groups_per_step, event.resumed_at
            case Phase():
                self.phase, self.phase_detail = event.phase, event.detail
            case ProcessChanged():
                self.processes[event.role] = event.state
            case EpisodeEnded():
                self.verdicts[event.verdict] += 1
                self.live = event.live
            case EpisodeCancelled():
                self.live = event.live
            case GroupClosed():
                self.num_ready = event.num_ready
                if event.reason is not None:
                    self.drops[event.reason.partition(":")[0]] += 1
            case BatchReady():
                self.times_to_batch_s.append(event.time_to_batch_s)
                self.num_ready = max(self.num_ready - event.num_groups, 0)
            case StepApplied():
                self.step, self.step_s, self.metrics = event.step, event.step_s, event.metrics
                self.rewards.append(event.reward_sampled)
            case Published():
                self.publication_s = event.latency_s
            case _:
                self._apply_rare(event)

    def _apply_rare(self, event: Event) -> None:
        match event:
            case GpuTimeSpent():
                self.gpu_s.update(event.gpu_s)
            case LaunchingChanged():
                self.launching = "" if event.paused_s is None else launching_text(event.paused_s, event.reason)
            case SandboxesUsed():
                self.sandboxes = sandboxes_text(vars(event))
            case BalanceDecided():
                self.balance = f"{event.choice}: {event.reason}"
            case Evaluated():
                self.evaluations[event.label] = event.success
            case Warned():
                self.warnings.append(event.message)
            case RunEnded():
                self.ended = event.status


_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: list[float], *, low: float = 0.0, high: float = 1.0, width: int = 60) -> str:
    """Values as one line of blocks between `low` and `high`; the last `width` of them."""
    span = max(high - low, 1e-9)
    scaled = [min(max((value - low) / span, 0.0), 1.0) for value in values[-width:]]
    return "".join(_BARS[min(int(s * len(_BARS)), len(_BARS) - 1)] for s in scaled)
